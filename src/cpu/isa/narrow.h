// Row kernels of dtypes with fewer bits than their compute type. For float16 and bfloat16 a block
// is widened to float32, float32's kernel does the work, and the result is rounded once. For
// integers of 8 and 16 bits a block is widened to int32, and the result's low bits are kept. So
// every op has the wide type's arithmetic, and no kernel is written twice.
#pragma once

#include "cpu/isa/elementwise.h"
#include "cpu/isa/reduce.h"

namespace needle {
namespace NEEDLE_ISA {

constexpr int64_t kNarrowBlock = 256;

// The elements of an operand in the compute type. An operand of stride 0 is widened once and keeps
// its stride.
template <class S>
struct Widened {
  using C = typename Io<S>::C;
  alignas(64) C block[kNarrowBlock];
  const S* x;
  int64_t stride, step;

  Widened(const void* data, int64_t s) : x(static_cast<const S*>(data)), stride(s), step(s != 0) {}
  const C* read(int64_t i, int64_t n) {
    if (step != 0) {
      cast_row<S, C>(x + i * stride, stride, block, 1, n);
    } else if (i == 0) {
      block[0] = Io<S>::load(*x);
    }
    return block;
  }
};

template <class F>
static inline void each_block(int64_t n, F&& fn) {
  for (int64_t i = 0; i < n; i += kNarrowBlock) fn(i, n - i < kNarrowBlock ? n - i : kNarrowBlock);
}

// `kBool` results are stored as they are, other results are narrowed to S.
template <class S, bool kBool>
struct NarrowRows {
  using C = typename Io<S>::C;
  static __attribute__((noinline)) void unary(UnaryRow row, const void* xv, int64_t sx, void* ov,
                                              int64_t n) {
    alignas(64) C out[kNarrowBlock];
    Widened<S> x(xv, sx);
    each_block(n, [&](int64_t i, int64_t m) {
      row(x.read(i, m), x.step, target(out, ov, i), m);
      finish(out, ov, i, m);
    });
  }
  static __attribute__((noinline)) void binary(BinaryRow row, const void* av, int64_t sa,
                                               const void* bv, int64_t sb, void* ov, int64_t n) {
    alignas(64) C out[kNarrowBlock];
    Widened<S> a(av, sa), b(bv, sb);
    each_block(n, [&](int64_t i, int64_t m) {
      row(a.read(i, m), a.step, b.read(i, m), b.step, target(out, ov, i), m);
      finish(out, ov, i, m);
    });
  }

 private:
  static void* target(C* out, void* ov, int64_t i) {
    return kBool ? static_cast<void*>(static_cast<Bool*>(ov) + i) : out;
  }
  static void finish(const C* out, void* ov, int64_t i, int64_t n) {
    if constexpr (!kBool) cast_row<C, S>(out, 1, static_cast<S*>(ov) + i, 1, n);
  }
};

// Sums and products use the compute type's wide accumulator; maxima and minima are stored as S.
template <class S, bool kSelects>
static void narrow_reduce_row(ReduceRow row, const void* xv, int64_t sx, void* accv, int64_t n) {
  using C = typename Io<S>::C;
  Widened<S> x(xv, sx);
  S* narrow = static_cast<S*>(accv);
  C selected = 0;
  if constexpr (kSelects) selected = Io<S>::load(*narrow);
  each_block(n, [&](int64_t i, int64_t m) {
    row(x.read(i, m), x.step, kSelects ? static_cast<void*>(&selected) : accv, m);
  });
  if constexpr (kSelects) *narrow = Io<S>::store(selected);
}

template <class S, bool kSelects>
static void narrow_reduce_columns(ReduceColumns row, const void* xv, int64_t sx, void* accv,
                                  int64_t n) {
  using C = typename Io<S>::C;
  alignas(64) C acc[kNarrowBlock];
  Widened<S> x(xv, sx);
  each_block(n, [&](int64_t i, int64_t m) {
    if constexpr (kSelects) {
      S* narrow = static_cast<S*>(accv) + i;
      cast_row<S, C>(narrow, 1, acc, 1, m);
      row(x.read(i, m), x.step, acc, m);
      cast_row<C, S>(acc, 1, narrow, 1, m);
    } else {
      row(x.read(i, m), x.step, static_cast<typename Accumulator<C>::type*>(accv) + i, m);
    }
  });
}

// Casts through int32, in blocks: from a small integer to elements of `size` bytes, and back.
template <class S>
static __attribute__((noinline)) void cast_from_small(CastRow row, int64_t size, const void* xv,
                                                      int64_t sx, void* yv, int64_t sy, int64_t n) {
  Widened<S> x(xv, sx);
  char* y = static_cast<char*>(yv);
  each_block(n, [&](int64_t i, int64_t m) { row(x.read(i, m), x.step, y + i * sy * size, sy, m); });
}
template <class S>
static __attribute__((noinline)) void cast_to_small(CastRow row, int64_t size, const void* xv,
                                                    int64_t sx, void* yv, int64_t sy, int64_t n) {
  alignas(64) int32_t block[kNarrowBlock];
  const char* x = static_cast<const char*>(xv);
  S* y = static_cast<S*>(yv);
  each_block(n, [&](int64_t i, int64_t m) {
    row(x + i * sx * size, sx, block, 1, m);
    cast_row<int32_t, S>(block, 1, y + i * sy, sy, m);
  });
}

// Parameters and gradients are half precision; the state between steps is float32.
template <class S>
static void half_sgd_row(SgdRow row, void* pv, const void* gv, void* vv, int64_t n,
                         const SgdFactors& f) {
  alignas(64) float p[kNarrowBlock];
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
  alignas(64) float p[kNarrowBlock];
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
