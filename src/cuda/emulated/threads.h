// Running one emulated block.
#pragma once

#include "cuda_runtime.h"

namespace emulated {

// Runs thread(context) as each thread of the block that blockIdx and blockDim describe. One block
// at a time.
void run_block(int threads, void (*thread)(void*), void* context);

}  // namespace emulated
