// The BLAS that was found when needle was built: loaded beside the module, one thread per call.
#pragma once

#include "common/device.h"

namespace needle {

enum class GemmChoice { automatic, own, blas };

// Reads NEEDLE_GEMM and loads the library if it will be used. Called at import, while there are no
// kernels running: the library reads the environment, which is set for it and restored.
void init_blas();
GemmChoice gemm_choice();
bool blas_loaded();
// Where it came from, or why there is none.
const char* blas_status();
// False when the operands' layout is none BLAS takes.
bool blas_gemm(const GemmArgs& g, bool single);

}  // namespace needle
