// What the CUDA module tells and lets users say about memory, beside common/blocks.h.
#pragma once

#include <cstdint>

namespace needle {

// Gives foreign memory back that was waiting for work to be done. May run Python code: called with
// no lock held.
void poll_foreign();

namespace cuda {

// Bytes taken from the device (in use and kept), the most there have been, those kept; calls of
// cudaMalloc; the most bytes that may be taken, -1 for no limit.
struct MemoryStats {
  int64_t reserved, peak, cached, mallocs, limit;
};
MemoryStats memory_stats(int device);
// Above it requests fail as if the device had no more; what is kept is given up first.
void set_memory_limit(int device, int64_t bytes);

}  // namespace cuda
}  // namespace needle
