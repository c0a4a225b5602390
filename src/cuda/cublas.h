// cuBLAS, loaded by the first matmul; needle is built and runs without it.
#pragma once

#include <string>
#include <vector>

#include "common/device.h"
#include "cuda/runtime.h"

namespace needle {
namespace cuda {

// Reads NEEDLE_GEMM (auto, own, blas); called at import. Throws std::invalid_argument for other
// values.
void init_cublas();
// Adds folders to search after the folders that the loader knows.
void add_library_folders(std::vector<std::string> folders);
// Loads the library, and returns its name or the reason why there is none.
std::string blas_status();
// Whether float32 matmuls may round their operands to 10 bits for the tensor cores.
void allow_tf32(bool allow);
bool tf32_allowed();
// Returns false if there is no cuBLAS, or if it does not take the layout; see multiply in gemm.h.
bool cublas_multiply(const Work& work, const GemmArgs& g, DType t, const Loop<2>& batch,
                     bool accumulate);

}  // namespace cuda
}  // namespace needle
