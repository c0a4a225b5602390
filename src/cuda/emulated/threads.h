// Running one emulated block.
#pragma once

#include "cuda_runtime.h"

namespace emulated {

// Runs thread(context) as each thread of the block that blockIdx and blockDim describe. False where
// some wait for others that have ended. One block at a time.
bool run_block(int threads, void (*thread)(void*), void* context);

}  // namespace emulated
