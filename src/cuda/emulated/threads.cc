// The threads of emulated blocks.
#undef _FORTIFY_SOURCE  // its longjmp refuses to jump to another stack
#include "threads.h"

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace {

constexpr size_t kStackBytes = 1 << 20;  // TVM's unrolled kernels have large frames

// The threads of a block. Threads run one after another on one fiber as long as they do not wait. A
// thread that waits keeps its fiber, and another fiber runs threads that have not begun. Threads
// run in the order of their numbers, or in reverse with NEEDLE_EMULATED_ORDER=descending: one of
// the two orders exposes a thread that reads another's write without a barrier.
enum class State { waiting_for_block, waiting_for_warp, running, done };

struct Fiber {
  ucontext_t start;
  jmp_buf here;  // where the thread waits; unlike swapcontext, a jump needs no system call
  bool started = false;
  std::unique_ptr<char[]> stack{new char[kStackBytes]};
};

struct Block {
  jmp_buf scheduler;
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<State> state;
  std::vector<Fiber*> fiber_of;
  std::vector<uint64_t> slots;
  int threads = 0, begun = 0, current = 0;
  Fiber* running = nullptr;
  void (*thread)(void*) = nullptr;
  void* context = nullptr;

  // The i-th thread to run among those in [first, last).
  static int at(int i, int first, int last) {
    static const char* const order = std::getenv("NEEDLE_EMULATED_ORDER");
    static const bool descending = order != nullptr && std::strcmp(order, "descending") == 0;
    return descending ? last - 1 - (i - first) : i;
  }
  void enter(int t) {
    current = t;
    const unsigned i = static_cast<unsigned>(t);
    threadIdx = dim3(i % blockDim.x, i / blockDim.x % blockDim.y, i / blockDim.x / blockDim.y);
  }
  // Both functions return when the other side switches back.
  void resume(Fiber* f) {
    running = f;
    if (_setjmp(scheduler) != 0) return;
    if (f->started) _longjmp(f->here, 1);
    f->started = true;
    setcontext(&f->start);
  }
  void leave(Fiber* f) {
    if (_setjmp(f->here) == 0) _longjmp(scheduler, 1);
  }
  void wait(State s) {
    state[current] = s;
    fiber_of[current] = running;
    leave(running);
  }
  // Runs every thread in [first, last) whose state is `from`.
  void release(State from, int first, int last) {
    for (int t = first; t < last; ++t)
      if (state[t] == from) state[t] = State::running;
    for (int i = first; i < last; ++i) {
      const int t = at(i, first, last);
      if (state[t] == State::running) {
        enter(t);
        resume(fiber_of[t]);
      }
    }
  }
};

Block g_block;

void fiber_main() {
  Block& b = g_block;
  for (;;) {
    while (b.begun < b.threads) {
      const int t = Block::at(b.begun++, 0, b.threads);
      b.enter(t);
      b.state[t] = State::running;
      b.thread(b.context);
      b.state[b.current] = State::done;
      // A thread that waited has returned here on its own fiber: the scheduler continues.
      if (b.current != t) std::abort();
      if (b.fiber_of[t] != nullptr) break;
    }
    b.leave(b.running);
  }
}

Fiber* new_fiber() {
  g_block.fibers.push_back(std::make_unique<Fiber>());
  Fiber* f = g_block.fibers.back().get();
  getcontext(&f->start);
  f->start.uc_stack.ss_sp = f->stack.get();
  f->start.uc_stack.ss_size = kStackBytes;
  f->start.uc_link = nullptr;
  makecontext(&f->start, fiber_main, 0);
  return f;
}

// Returns false if threads wait for threads that never come.
bool run_threads() {
  Block& b = g_block;
  b.begun = 0;
  b.state.assign(static_cast<size_t>(b.threads), State::running);
  b.fiber_of.assign(static_cast<size_t>(b.threads), nullptr);
  b.slots.resize(static_cast<size_t>(b.threads));
  size_t next = 0;
  while (b.begun < b.threads) {
    if (next == b.fibers.size()) new_fiber();
    b.resume(b.fibers[next++].get());
  }
  for (;;) {
    int done = 0, at_barrier = 0;
    bool moved = false;
    for (int w = 0; w < b.threads; w += 32) {
      const int end = std::min(w + 32, b.threads);
      int in_warp = 0, others = 0;
      for (int t = w; t < end; ++t) {
        in_warp += b.state[t] == State::waiting_for_warp;
        others += b.state[t] == State::waiting_for_block;
        done += b.state[t] == State::done;
      }
      at_barrier += others;
      if (in_warp > 0 && others == 0) {
        b.release(State::waiting_for_warp, w, end);
        moved = true;
      }
    }
    if (done == b.threads) return true;
    if (moved) continue;
    if (done + at_barrier < b.threads) return false;
    b.release(State::waiting_for_block, 0, b.threads);
  }
}

}  // namespace

void __syncthreads() { g_block.wait(State::waiting_for_block); }
void __syncwarp(unsigned) { g_block.wait(State::waiting_for_warp); }

namespace emulated {

int lane() { return g_block.current % 32; }

uint64_t shuffle(uint64_t bits, int from) {
  Block& b = g_block;
  const int own = b.current;
  b.slots[own] = bits;
  b.wait(State::waiting_for_warp);
  const int at = own / 32 * 32 + from;
  const uint64_t found = at < b.threads ? b.slots[at] : bits;
  b.wait(State::waiting_for_warp);
  return found;
}

bool run_block(int threads, void (*thread)(void*), void* context) {
  g_block.threads = threads;
  g_block.thread = thread;
  g_block.context = context;
  return run_threads();
}

}  // namespace emulated
