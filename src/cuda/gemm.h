// Matrix products inside the module.
#pragma once

#include "common/device.h"
#include "cuda/runtime.h"

namespace needle {
namespace cuda {

// c = a * b, or c += a * b where `accumulate`, for each step of the batch, whose strides are those
// of a and b; c's are whole matrices. By cuBLAS where it is loaded and takes the layout.
void multiply(const Work& work, const GemmArgs& g, DType t, const Loop<2>& batch, bool accumulate);

}  // namespace cuda
}  // namespace needle
