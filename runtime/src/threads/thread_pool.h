// One set of threads for needle's kernels and for compiled code, in a library to which the native
// modules of needle and needle_runtime are linked. Work runs on the caller if it is small or
// nested, or if the pool is busy with another thread's call.
#pragma once

#include <cstdint>
#include <type_traits>

#define NEEDLE_SHARED __attribute__((visibility("default")))

namespace needle {

using RangeFn = void (*)(void* context, int64_t begin, int64_t end);

// Runs fn over [0, n) in parallel, in pieces of at least `grain`; returns when all are done. fn
// must not throw. The pieces depend only on n, grain and the number of threads.
NEEDLE_SHARED void parallel_for_raw(int64_t n, int64_t grain, RangeFn fn, void* context);

template <class F>
void parallel_for(int64_t n, int64_t grain, F&& fn) {
  using Fn = std::remove_reference_t<F>;
  parallel_for_raw(
      n, grain,
      [](void* context, int64_t begin, int64_t end) { (*static_cast<Fn*>(context))(begin, end); },
      const_cast<void*>(static_cast<const void*>(&fn)));
}

// A task of compiled code. `team` is for `barrier`; tasks of one team run at the same time, each on
// its own thread. Returns 0, or another number for a failure. It must not throw.
struct Team {
  void* pool;
  int32_t tasks;
};
using TaskFn = int (*)(int task, Team* team, void* context);

// Runs fn once in each of at most `threads` tasks, including the caller's, and returns the first
// failure, or 0. There are as many tasks as threads that are awake, or can be woken in less time
// than they save; `fn` divides its work by `team->tasks`.
NEEDLE_SHARED int run_team(int threads, TaskFn fn, void* context);
// Returns when every task of the team has called it as often as this task.
NEEDLE_SHARED void barrier(Team* team);

// The number of threads that a call of `parallel_for` may use, including the caller; at least 1.
NEEDLE_SHARED int num_threads();
NEEDLE_SHARED void set_num_threads(int count);

// Reads NEEDLE_NUM_THREADS, else affinity and cgroup quota. Throws std::invalid_argument for a bad
// value.
NEEDLE_SHARED void init_threads();

}  // namespace needle
