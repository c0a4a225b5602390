// The BLAS that was found when needle was built: loaded beside the module, one thread per call.
#pragma once

#include <cstdint>

namespace needle {

// A strided matrix product's operands; C is row-major with leading dimension n.
struct GemmArgs {
  int64_t m, n, k;
  const char* a;
  int64_t a_row, a_col;  // strides in elements
  const char* b;
  int64_t b_row, b_col;
  char* c;
  int64_t ldc;
};

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
