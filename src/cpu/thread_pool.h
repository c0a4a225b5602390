// A small thread pool for the kernels. Work runs on the caller if it is small or nested, or if the
// pool is busy with another thread's call.
#pragma once

#include <cstdint>
#include <type_traits>

namespace needle {

using RangeFn = void (*)(void* context, int64_t begin, int64_t end);

// Runs fn over [0, n) in parallel, in pieces of at least `grain`; returns when all are done. fn
// must not throw. The pieces depend only on n, grain and the number of threads.
void parallel_for_raw(int64_t n, int64_t grain, RangeFn fn, void* context);

template <class F>
void parallel_for(int64_t n, int64_t grain, F&& fn) {
  using Fn = std::remove_reference_t<F>;
  parallel_for_raw(
      n, grain,
      [](void* context, int64_t begin, int64_t end) { (*static_cast<Fn*>(context))(begin, end); },
      const_cast<void*>(static_cast<const void*>(&fn)));
}

// The number of threads that a call may use, including the caller; at least 1.
int num_threads();
void set_num_threads(int count);

// Lets the workers sleep until the next parallel_for instead of spinning, because another library's
// threads are about to need their cores.
void rest_threads();

// Reads NEEDLE_NUM_THREADS, else affinity and cgroup quota. std::invalid_argument for a bad value.
void init_threads();

}  // namespace needle
