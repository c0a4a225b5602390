// The threads of emulated blocks.
#undef _FORTIFY_SOURCE  // its longjmp refuses to go to another stack
#include "threads.h"

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace {

constexpr size_t kStackBytes = 64 << 10;

// The threads of a block. Threads run one after another on one fiber for as long as they do not
// wait; one that does keeps its fiber, and another goes on with those that have not begun.
enum class State { waiting, running, done };

struct Fiber {
  ucontext_t start;
  jmp_buf here;  // where it waits; a jump needs no system call, as swapcontext does
  bool started = false;
  std::unique_ptr<char[]> stack{new char[kStackBytes]};
};

struct Block {
  jmp_buf scheduler;
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<State> state;
  std::vector<Fiber*> fiber_of;
  int threads = 0, begun = 0, current = 0;
  Fiber* running = nullptr;
  void (*thread)(void*) = nullptr;
  void* context = nullptr;

  void enter(int t) {
    current = t;
    const unsigned i = static_cast<unsigned>(t);
    threadIdx = dim3(i % blockDim.x, i / blockDim.x % blockDim.y, i / blockDim.x / blockDim.y);
  }
  // Both return when the other side comes back.
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
  void wait() {
    state[current] = State::waiting;
    fiber_of[current] = running;
    leave(running);
  }
  // Runs every thread that waits, to its end or to the next barrier.
  void release() {
    for (State& s : state)
      if (s == State::waiting) s = State::running;
    for (int t = 0; t < threads; ++t)
      if (state[t] == State::running) {
        enter(t);
        resume(fiber_of[t]);
      }
  }
};

Block g_block;

void fiber_main() {
  Block& b = g_block;
  for (;;) {
    while (b.begun < b.threads) {
      const int t = b.begun++;
      b.enter(t);
      b.state[t] = State::running;
      b.thread(b.context);
      b.state[b.current] = State::done;
      // A thread that waited came back here on its own fiber: the scheduler goes on.
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

void run_threads() {
  Block& b = g_block;
  b.begun = 0;
  b.state.assign(static_cast<size_t>(b.threads), State::running);
  b.fiber_of.assign(static_cast<size_t>(b.threads), nullptr);
  size_t next = 0;
  while (b.begun < b.threads) {
    if (next == b.fibers.size()) new_fiber();
    b.resume(b.fibers[next++].get());
  }
  // A barrier is for those threads that have not ended.
  while (std::count(b.state.begin(), b.state.end(), State::waiting) > 0) b.release();
}

}  // namespace

void __syncthreads() { g_block.wait(); }

namespace emulated {

void run_block(int threads, void (*thread)(void*), void* context) {
  g_block.threads = threads;
  g_block.thread = thread;
  g_block.context = context;
  run_threads();
}

}  // namespace emulated
