// Row kernels of elementwise ops, casts, where and the optimizers' updates.
#pragma once

#ifdef __F16C__
#include <immintrin.h>
#endif

#include "common/functors.h"
#include "cpu/isa/usual.h"
#include "cpu/kernel_table.h"

namespace needle {
namespace NEEDLE_ISA {

template <class Op, class In, class Out>
static void unary_row(const void* xv, int64_t sx, void* ov, int64_t n) {
  const In* __restrict x = static_cast<const In*>(xv);
  Out* __restrict o = static_cast<Out*>(ov);
  if constexpr (Usual<Op, In>::kExists)
    if (sx == 1) return usual_row<Op, In>(x, o, n);
  if (sx == 1) {
    for (int64_t i = 0; i < n; ++i) o[i] = Io<Out>::store(Op::at(Io<In>::load(x[i])));
  } else {
    for (int64_t i = 0; i < n; ++i) o[i] = Io<Out>::store(at_any<Op, In>(Io<In>::load(x[i * sx])));
  }
}

template <class Op, class In, class Out>
static void binary_row(const void* av, int64_t sa, const void* bv, int64_t sb, void* ov,
                       int64_t n) {
  const In* a = static_cast<const In*>(av);
  const In* b = static_cast<const In*>(bv);
  Out* __restrict o = static_cast<Out*>(ov);
  if constexpr (Usual<Op, In>::kExists) {
    if (sa == 1 && sb == 1) return usual_row<Op, In, 1, 1>(a, b, o, n);
    if (sa == 1 && sb == 0) return usual_row<Op, In, 1, 0>(a, b, o, n);
    if (sa == 0 && sb == 1) return usual_row<Op, In, 0, 1>(a, b, o, n);
  }
  if (sa == 1 && sb == 1) {
    for (int64_t i = 0; i < n; ++i)
      o[i] = Io<Out>::store(Op::at(Io<In>::load(a[i]), Io<In>::load(b[i])));
  } else if (sa == 1 && sb == 0 && n > 0) {
    const auto y = Io<In>::load(*b);
    for (int64_t i = 0; i < n; ++i) o[i] = Io<Out>::store(Op::at(Io<In>::load(a[i]), y));
  } else if (sa == 0 && sb == 1 && n > 0) {
    const auto x = Io<In>::load(*a);
    for (int64_t i = 0; i < n; ++i) o[i] = Io<Out>::store(Op::at(x, Io<In>::load(b[i])));
  } else {
    for (int64_t i = 0; i < n; ++i)
      o[i] = Io<Out>::store(at_any<Op, In>(Io<In>::load(a[i * sa]), Io<In>::load(b[i * sb])));
  }
}

// Powers with one exponent: common exponents do not need pow.
template <class T>
static void power_row(const void* av, int64_t sa, const void* bv, int64_t sb, void* ov, int64_t n) {
  if constexpr (Kind<T>::floating) {
    if (sb == 0 && n > 0) {
      const T e = *static_cast<const T*>(bv);
      if (e == T(2)) return unary_row<fn::square, T, T>(av, sa, ov, n);
      if (e == T(0.5)) return unary_row<fn::half_power, T, T>(av, sa, ov, n);
      if (e == T(-1)) return unary_row<fn::reciprocal, T, T>(av, sa, ov, n);
      if (e == T(1)) {
        const T one = T(1);
        return binary_row<fn::multiply, T, T>(av, sa, &one, 0, ov, n);
      }
    }
  }
  binary_row<fn::power, T, T>(av, sa, bv, sb, ov, n);
}

// Converts a prefix of n adjacent elements with dedicated instructions; returns its length, or 0.
template <class In, class Out>
static inline int64_t convert_lanes(const In*, Out*, int64_t) {
  return 0;
}
#ifdef __F16C__
// Gives the same bits as Io<Float16>.
template <>
inline int64_t convert_lanes(const Float16* x, float* y, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    _mm256_storeu_ps(y + i,
                     _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i))));
  return i;
}
template <>
inline int64_t convert_lanes(const float* x, Float16* y, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(y + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
  return i;
}
#endif

template <class In, class Out>
static void cast_row(const void* xv, int64_t sx, void* yv, int64_t sy, int64_t n) {
  const In* __restrict x = static_cast<const In*>(xv);
  Out* __restrict y = static_cast<Out*>(yv);
  if (sx == 1 && sy == 1) {
    for (int64_t i = convert_lanes(x, y, n); i < n; ++i)
      y[i] = Io<Out>::store(for_store<Out>(Io<In>::load(x[i])));
  } else {
    for (int64_t i = 0; i < n; ++i)
      y[i * sy] = Io<Out>::store(for_store<Out>(Io<In>::load(x[i * sx])));
  }
}

template <class S>
static void where_row(const uint8_t* c, int64_t sc, const void* av, int64_t sa, const void* bv,
                      int64_t sb, void* ov, int64_t n) {
  const S* a = static_cast<const S*>(av);
  const S* b = static_cast<const S*>(bv);
  S* __restrict o = static_cast<S*>(ov);
  for (int64_t i = 0; i < n; ++i) {
    const S x = a[i * sa], y = b[i * sb];
    o[i] = c[i * sc] != 0 ? x : y;
  }
}

template <class S>
static void add_to_row(const void* xv, int64_t sx, void* yv, int64_t sy, int64_t n) {
  const S* x = static_cast<const S*>(xv);
  S* __restrict y = static_cast<S*>(yv);
  if (sx == 1 && sy == 1) {
    for (int64_t i = 0; i < n; ++i)
      y[i] = Io<S>::store(fn::add::at(Io<S>::load(y[i]), Io<S>::load(x[i])));
  } else {
    for (int64_t i = 0; i < n; ++i)
      y[i * sy] = Io<S>::store(fn::add::at(Io<S>::load(y[i * sy]), Io<S>::load(x[i * sx])));
  }
}

// g + decay * p. Without weight decay it is g, even where p is infinite.
template <class T>
static inline T decayed(T g, T p, T decay) {
  return decay == T(0) ? g : g + decay * p;
}

template <class T>
static void sgd_row(void* pv, const void* gv, void* vv, int64_t n, const SgdFactors& f) {
  T* __restrict p = static_cast<T*>(pv);
  const T* __restrict g = static_cast<const T*>(gv);
  T* __restrict v = static_cast<T*>(vv);
  const T lr = T(f.lr), momentum = T(f.momentum), gain = T(1 - f.dampening);
  const T decay = T(f.weight_decay);
  if (v == nullptr) {
    for (int64_t i = 0; i < n; ++i) p[i] -= lr * decayed(g[i], p[i], decay);
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    v[i] = momentum * v[i] + gain * decayed(g[i], p[i], decay);
    p[i] -= lr * v[i];
  }
}

static inline float root(float x) { return __builtin_sqrtf(x); }
static inline double root(double x) { return __builtin_sqrt(x); }

template <class T>
static void adam_row(void* pv, const void* gv, void* mv, void* vv, int64_t n,
                     const AdamFactors& f) {
  T* __restrict p = static_cast<T*>(pv);
  const T* __restrict gp = static_cast<const T*>(gv);
  T* __restrict m = static_cast<T*>(mv);
  T* __restrict v = static_cast<T*>(vv);
  const T lr = T(f.lr), b1 = T(f.beta1), b2 = T(f.beta2), c1 = T(1 - f.beta1), c2 = T(1 - f.beta2);
  const T eps = T(f.eps), k1 = T(f.correction1), k2 = T(f.correction2);
  const T decay = f.decoupled ? T(0) : T(f.weight_decay);
  const T keep = f.decoupled ? T(1 - f.lr * f.weight_decay) : T(1);
  for (int64_t i = 0; i < n; ++i) {
    const T g = decayed(gp[i], p[i], decay);
    m[i] = b1 * m[i] + c1 * g;
    v[i] = b2 * v[i] + c2 * g * g;
    p[i] = keep * p[i] - lr * ((m[i] / k1) / (root(v[i] / k2) + eps));
  }
}

}  // namespace NEEDLE_ISA
}  // namespace needle
