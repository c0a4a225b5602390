// Memory statistics and limits of the CUDA module, in addition to common/blocks.h.
#pragma once

#include <cstdint>

namespace needle {

// Releases foreign memory whose pending work is done. This may run Python code, so call it without
// holding locks.
void poll_foreign();

namespace cuda {

// Bytes taken from the device (in use and kept), their peak, and kept bytes; the number of calls to
// cudaMalloc; the limit on bytes taken, or -1 for no limit.
struct MemoryStats {
  int64_t reserved, peak, cached, mallocs, limit;
};
MemoryStats memory_stats(int device);
// Above the limit, requests fail as if the device had no more memory; kept blocks are freed first.
void set_memory_limit(int device, int64_t bytes);

}  // namespace cuda
}  // namespace needle
