// The table of CPU kernels, compiled once per instruction set. Kernels work on rows (one strided
// run of elements); the drivers do loops, threads and checks. Strides count elements. Outputs are
// contiguous unless a stride is given, and never alias inputs.
#pragma once

#include <cstdint>

#include "common/dtype.h"
#include "common/ops.h"

namespace needle {

using UnaryRow = void (*)(const void* x, int64_t sx, void* out, int64_t n);
using BinaryRow = void (*)(const void* a, int64_t sa, const void* b, int64_t sb, void* out,
                           int64_t n);
using CastRow = void (*)(const void* x, int64_t sx, void* y, int64_t sy, int64_t n);
// out = c ? a : b
using WhereRow = void (*)(const uint8_t* c, int64_t sc, const void* a, int64_t sa, const void* b,
                          int64_t sb, void* out, int64_t n);
// acc = acc op row; acc has the accumulator type.
using ReduceRow = void (*)(const void* x, int64_t sx, void* acc, int64_t n);
// acc[j] = acc[j] op x[j * sx] for j < n.
using ReduceColumns = void (*)(const void* x, int64_t sx, void* acc, int64_t n);
// The first index of the maximum (minimum); NaN wins.
using ArgRow = int64_t (*)(const void* x, int64_t sx, int64_t n);
// y[i] += x[i]
using AddToRow = void (*)(const void* x, int64_t sx, void* y, int64_t sy, int64_t n);

using SgdRow = void (*)(void* p, const void* g, void* v, int64_t n, const SgdFactors& f);

using AdamRow = void (*)(void* p, const void* g, void* m, void* v, int64_t n, const AdamFactors& f);

// Elements per task in parallel elementwise kernels.
constexpr int64_t kGrain = 16384;

constexpr int kDotTile = 4;
constexpr int kMaxTileRows = 8;  // the largest tile of any instruction set
// Depth of the reduction blocks: a panel of B (kDepth x nr) fits the L1 cache.
constexpr int64_t kDepth = 256;

// Matmul kernels for one element type. A is packed in panels [k][mr], B in panels [k][nr] (or read
// in place, row-major with leading dimension ldb).
struct GemmKernels {
  int mr, nr;
  // c (mr x nr, ldc) = (accumulate ? c : 0) + a panel * b panel; only rows x cols are stored.
  void (*tile)(int64_t k, const void* a, const void* b, int64_t ldb, void* c, int64_t ldc,
               bool accumulate, int rows, int cols);
  // The same with A's rows anywhere in memory, in `taps` runs of `length`: the sum over t and p
  // of rows_at[i][a_taps[t] + p] * b[(b_taps[t] + p) * ldb + j].
  void (*tile_rows)(int64_t taps, const int64_t* a_taps, const int64_t* b_taps, int64_t length,
                    const void* const* rows_at, const void* b, int64_t ldb, void* c, int64_t ldc,
                    bool accumulate, int rows, int cols);
  // The same with A's columns anywhere in memory: the sum over p of a[offsets[p] + i] * b[p][j].
  void (*tile_columns)(int64_t k, const void* a, const int64_t* offsets, const void* b, int64_t ldb,
                       void* c, int64_t ldc, bool accumulate, int rows, int cols);
  // c (up to kDotTile x kDotTile) = a (rows, k) * b (cols, k) transposed, both read in place.
  void (*dot_tile)(int64_t k, const void* a, int64_t lda, const void* b, int64_t ldb, void* c,
                   int64_t ldc, int rows, int cols);
  // Packs `rows` (<= mr) rows x k of a strided matrix, zero-padding to mr.
  void (*pack_a)(const void* a, int64_t row_stride, int64_t k_stride, int rows, int64_t k,
                 void* packed);
  // Packs k x cols (<= nr), zero-padding to nr.
  void (*pack_b)(const void* b, int64_t k_stride, int64_t col_stride, int64_t k, int cols,
                 void* packed);
  // One row: c[0, cols) = a (k elements, a_step apart) * b (k x cols, ldb).
  void (*row)(int64_t k, const void* a, int64_t a_step, const void* b, int64_t ldb, void* c,
              int64_t cols);
};

// Kernels of src/cpu/layers.cc; see isa/layers.h.
struct LayerKernels {
  void (*column_sums)(const void* x, int64_t step, int64_t rows, double* sum, int64_t n);
  void (*column_squares)(const void* x, int64_t step, int64_t rows, const double* mean, double* sum,
                         int64_t n);
  void (*column_products)(const void* g, int64_t g_step, const void* x, int64_t x_step,
                          int64_t rows, const double* mean, double* sums, int64_t n);
  void (*column_affine)(const void* g, int64_t g_step, const void* a, const void* x, int64_t x_step,
                        const void* m, const void* b, const void* c, int64_t rows, void* out,
                        int64_t n);
  void (*group_norm)(const void* x, const void* w, const void* b, int64_t channels, int64_t inner,
                     double eps, void* out);
  void (*group_norm_grad)(const void* g, const void* x, const void* w, int64_t channels,
                          int64_t inner, double eps, double* to_w, double* to_b, void* out);
  void (*lstm)(const void* sums, const void* c, void* h, void* out, int64_t n);
  void (*lstm_grad)(const void* sums, const void* c, const void* next, const void* gh,
                    const void* gc, void* gs, void* out, int64_t n);
};

struct KernelTable {
  const char* isa;
  UnaryRow unary[static_cast<int>(Unary::count)][kDTypes];
  BinaryRow binary[static_cast<int>(Binary::count)][kDTypes];
  CastRow cast[kDTypes][kDTypes];
  WhereRow where[kDTypes];
  ReduceRow reduce_row[static_cast<int>(Reduction::count)][kDTypes];
  ReduceColumns reduce_columns[static_cast<int>(Reduction::count)][kDTypes];
  ArgRow argmax[kDTypes], argmin[kDTypes];
  AddToRow add_to[kDTypes];
  SgdRow sgd[kDTypes];
  AdamRow adam[kDTypes];
  GemmKernels gemm[kDTypes];
  LayerKernels layers[kDTypes];
  // Word w of block first + i of Philox 4x32-10 is written to out[w * stride + i], for i in [0, n).
  void (*philox)(uint64_t key, uint64_t first, int64_t n, uint32_t* out, int64_t stride);
};

// The table for this processor, or the table that NEEDLE_CPU_ISA names. Throws
// std::invalid_argument for a name that is unknown, not built, or not supported by the processor.
const KernelTable& kernels();
// Chooses the table and checks the environment; called at import.
void select_isa();

}  // namespace needle
