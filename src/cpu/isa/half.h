// Row kernels of float16 and bfloat16: a block is widened to float32, float32's kernel does the
// work, and the result is rounded once. So every op has the same arithmetic as float32, and no
// kernel has a second copy.
#pragma once

#include "cpu/isa/elementwise.h"

namespace needle {
namespace NEEDLE_ISA {

constexpr int64_t kHalfBlock = 256;

// The float32 elements of an operand. An operand of stride 0 is widened once and keeps its stride.
template <class S>
struct Widened {
  alignas(64) float block[kHalfBlock];
  const S* x;
  int64_t stride, step;

  Widened(const void* data, int64_t s) : x(static_cast<const S*>(data)), stride(s), step(s != 0) {}
  const float* read(int64_t i, int64_t n) {
    if (step != 0) {
      cast_row<S, float>(x + i * stride, stride, block, 1, n);
    } else if (i == 0) {
      block[0] = Io<S>::load(*x);
    }
    return block;
  }
};

template <class F>
static inline void each_block(int64_t n, F&& fn) {
  for (int64_t i = 0; i < n; i += kHalfBlock) fn(i, n - i < kHalfBlock ? n - i : kHalfBlock);
}

// `kBool` results are stored as they are, others narrowed to S.
template <class S, bool kBool>
struct HalfRows {
  static __attribute__((noinline)) void unary(UnaryRow row, const void* xv, int64_t sx, void* ov,
                                              int64_t n) {
    alignas(64) float out[kHalfBlock];
    Widened<S> x(xv, sx);
    each_block(n, [&](int64_t i, int64_t m) {
      row(x.read(i, m), x.step, target(out, ov, i), m);
      finish(out, ov, i, m);
    });
  }
  static __attribute__((noinline)) void binary(BinaryRow row, const void* av, int64_t sa,
                                               const void* bv, int64_t sb, void* ov, int64_t n) {
    alignas(64) float out[kHalfBlock];
    Widened<S> a(av, sa), b(bv, sb);
    each_block(n, [&](int64_t i, int64_t m) {
      row(a.read(i, m), a.step, b.read(i, m), b.step, target(out, ov, i), m);
      finish(out, ov, i, m);
    });
  }

 private:
  static void* target(float* out, void* ov, int64_t i) {
    return kBool ? static_cast<void*>(static_cast<Bool*>(ov) + i) : out;
  }
  static void finish(const float* out, void* ov, int64_t i, int64_t n) {
    if constexpr (!kBool) cast_row<float, S>(out, 1, static_cast<S*>(ov) + i, 1, n);
  }
};

// Sums and products have float32's wide accumulator; maxima and minima stay in half precision.
template <class S, bool kSelects>
static void half_reduce_row(ReduceRow row, const void* xv, int64_t sx, void* accv, int64_t n) {
  Widened<S> x(xv, sx);
  S* narrow = static_cast<S*>(accv);
  float selected = 0;
  if constexpr (kSelects) selected = Io<S>::load(*narrow);
  each_block(n, [&](int64_t i, int64_t m) {
    row(x.read(i, m), x.step, kSelects ? static_cast<void*>(&selected) : accv, m);
  });
  if constexpr (kSelects) *narrow = Io<S>::store(selected);
}

template <class S, bool kSelects>
static void half_reduce_columns(ReduceColumns row, const void* xv, int64_t sx, void* accv,
                                int64_t n) {
  alignas(64) float acc[kHalfBlock];
  Widened<S> x(xv, sx);
  each_block(n, [&](int64_t i, int64_t m) {
    if constexpr (kSelects) {
      S* narrow = static_cast<S*>(accv) + i;
      cast_row<S, float>(narrow, 1, acc, 1, m);
      row(x.read(i, m), x.step, acc, m);
      cast_row<float, S>(acc, 1, narrow, 1, m);
    } else {
      row(x.read(i, m), x.step, static_cast<double*>(accv) + i, m);
    }
  });
}

// Parameters and gradients are half precision; the state between steps is float32.
template <class S>
static void half_sgd_row(SgdRow row, void* pv, const void* gv, void* vv, int64_t n,
                         const SgdFactors& f) {
  alignas(64) float p[kHalfBlock];
  Widened<S> g(gv, 1);
  float* v = static_cast<float*>(vv);
  each_block(n, [&](int64_t i, int64_t m) {
    S* narrow = static_cast<S*>(pv) + i;
    cast_row<S, float>(narrow, 1, p, 1, m);
    row(p, g.read(i, m), v == nullptr ? nullptr : v + i, m, f);
    cast_row<float, S>(p, 1, narrow, 1, m);
  });
}

template <class S>
static void half_adam_row(AdamRow row, void* pv, const void* gv, void* mv, void* vv, int64_t n,
                          const AdamFactors& f) {
  alignas(64) float p[kHalfBlock];
  Widened<S> g(gv, 1);
  each_block(n, [&](int64_t i, int64_t m) {
    S* narrow = static_cast<S*>(pv) + i;
    cast_row<S, float>(narrow, 1, p, 1, m);
    row(p, g.read(i, m), static_cast<float*>(mv) + i, static_cast<float*>(vv) + i, m, f);
    cast_row<float, S>(p, 1, narrow, 1, m);
  });
}

}  // namespace NEEDLE_ISA
}  // namespace needle
