// Matmul for use inside the module.
#pragma once

#include "common/device.h"
#include "cuda/runtime.h"

namespace needle {
namespace cuda {

// c = a * b, or c += a * b if `accumulate`, for each step of the batch; a and b have batch strides,
// and c's matrices are adjacent. Uses cuBLAS if it is loaded and takes the layout.
void multiply(const Work& work, const GemmArgs& g, DType t, const Loop<2>& batch, bool accumulate);

}  // namespace cuda
}  // namespace needle
