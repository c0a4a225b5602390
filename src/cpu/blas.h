// The BLAS that was found when needle was built; a call uses one thread.
#pragma once

#include "common/device.h"

namespace needle {

enum class GemmChoice { automatic, own, blas };

// Reads NEEDLE_GEMM and loads the library if it will be used. Called at import, while no kernel
// runs, because environment variables are changed while the library loads.
void init_blas();
GemmChoice gemm_choice();
bool blas_loaded();
// The path of the library, or the reason why there is no library.
const char* blas_status();
// Returns false if BLAS does not take the operands' layout.
bool blas_gemm(const GemmArgs& g, bool single);

}  // namespace needle
