// Running one emulated block.
#pragma once

#include "cuda_runtime.h"

namespace emulated {

// Runs thread(context) as each thread of the block given by blockIdx and blockDim. Returns false if
// some threads wait for threads that have ended. Runs one block at a time.
bool run_block(int threads, void (*thread)(void*), void* context);

}  // namespace emulated
