// What the CPU kernels that are compiled once per instruction set hand to the drivers. They work on
// rows (one strided run of elements); looping, threads and checks are the drivers' part.
// Strides count elements. Outputs are contiguous unless a stride is given, and never alias inputs.
#pragma once

#include <cstdint>

#include "common/dtype.h"
#include "common/ops.h"

namespace needle {

using UnaryRow = void (*)(const void* x, int64_t sx, void* out, int64_t n);
using BinaryRow = void (*)(const void* a, int64_t sa, const void* b, int64_t sb, void* out,
                           int64_t n);
using CastRow = void (*)(const void* x, int64_t sx, void* y, int64_t sy, int64_t n);
// out = c ? a : b, by element size (1, 4 or 8 bytes).
using WhereRow = void (*)(const uint8_t* c, int64_t sc, const void* a, int64_t sa, const void* b,
                          int64_t sb, void* out, int64_t n);
// acc = acc op row, acc of the accumulator type.
using ReduceRow = void (*)(const void* x, int64_t sx, void* acc, int64_t n);
// acc[j] = acc[j] op x[j * sx] for j < n.
using ReduceColumns = void (*)(const void* x, int64_t sx, void* acc, int64_t n);
// First index of the maximum (minimum); NaN wins.
using ArgRow = int64_t (*)(const void* x, int64_t sx, int64_t n);
// y[i] += x[i]
using AddToRow = void (*)(const void* x, int64_t sx, void* y, int64_t sy, int64_t n);

struct SgdFactors {
  double lr, momentum, dampening, weight_decay;
};
using SgdRow = void (*)(void* p, const void* g, void* v, int64_t n, const SgdFactors& f);

struct AdamFactors {
  double lr, beta1, beta2, eps, weight_decay, correction1, correction2;
  bool decoupled;
};
using AdamRow = void (*)(void* p, const void* g, void* m, void* v, int64_t n, const AdamFactors& f);

// Matrix product kernels for one element type. A is packed in panels [k][mr], B in panels [k][nr]
// (or read in place, row-major with leading dimension ldb).
struct GemmKernels {
  int mr, nr;
  // c (mr x nr, ldc) = (accumulate ? c : 0) + a panel * b panel; only rows x cols of it are stored.
  void (*tile)(int64_t k, const void* a, const void* b, int64_t ldb, void* c, int64_t ldc,
               bool accumulate, int rows, int cols);
  // Packs `rows` (<= mr) rows x k of a strided matrix, zero-padding to mr.
  void (*pack_a)(const void* a, int64_t row_stride, int64_t k_stride, int rows, int64_t k,
                 void* packed);
  // Packs k x cols (<= nr), zero-padding to nr.
  void (*pack_b)(const void* b, int64_t k_stride, int64_t col_stride, int64_t k, int cols,
                 void* packed);
  // One row: c[0, cols) = a (k, a_step apart) * b (k x cols, ldb).
  void (*row)(int64_t k, const void* a, int64_t a_step, const void* b, int64_t ldb, void* c,
              int64_t cols);
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
};

// The table for this processor, or the one NEEDLE_CPU_ISA names. Throws std::invalid_argument for a
// name that is unknown, not built, or not supported by the processor.
const KernelTable& kernels();
// Decides (and checks the environment) at import.
void select_isa();

}  // namespace needle
