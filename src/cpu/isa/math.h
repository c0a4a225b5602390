// float32 functions that compilers vectorise: branch-free, within 4 ulp (test_nd_math.py
// measures them). float64 uses libm. Without FMA the same formulas lose up to one more ulp.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "../../../needle_tvm/tir/vector_constants.h"
#include "common/scalar.h"

// A function of the C library, as the compiler's builtin.
#define NEEDLE_C(name) __builtin_##name

namespace needle {
namespace NEEDLE_ISA {

constexpr float kInfinity = __builtin_inff();

static inline float power_f32(float a, float b) { return __builtin_powf(a, b); }

#ifdef __FMA__
static inline float fma_(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline double fma_(double a, double b, double c) { return __builtin_fma(a, b, c); }
#else
static inline float fma_(float a, float b, float c) { return a * b + c; }
#endif

// A polynomial by Horner's scheme, the highest power first; p, if given, comes before c[kFirst].
template <int kFirst = 0, class T, int kCount>
[[gnu::always_inline]] static inline T polynomial(T p, T x, const T (&c)[kCount]) {
  if constexpr (kFirst == kCount)
    return p;
  else
    return polynomial<kFirst + 1>(fma_(p, x, c[kFirst]), x, c);
}
template <class T, int kCount>
[[gnu::always_inline]] static inline T polynomial(T x, const T (&c)[kCount]) {
  return polynomial<1>(c[0], x, c);
}

// e^x = 2^n * e^r with |r| <= ln(2)/2; 2^n in two factors, so that subnormal results are correct.
static inline float exp_f32(float x) {
  float clamped = x > kExpMost ? kExpMost : x;  // NaN passes both
  clamped = clamped < kExpLeast ? kExpLeast : clamped;
  float shifted = fma_(clamped, kPerLn2, kRound);
  float n = shifted - kRound;
  float r = fma_(n, kMinusLn2[0], clamped);
  r = fma_(n, kMinusLn2[1], r);
  float p = fma_(polynomial(r, kExp), r * r, r) + 1.0f;
  // The bias makes the exponent unsigned, so that halving it is defined even for NaN's garbage.
  uint32_t e = bits_of(shifted) - bits_of(kRound) + 1024u;
  uint32_t half = e >> 1, rest = e - half;
  float scale1 = float_of((half - 512u + 127u) << 23);
  float scale2 = float_of((rest - 512u + 127u) << 23);
  return p * scale1 * scale2;
}

// log1p on [-1/3, 1/3].
static inline float log1p_part(float m) {
  float s = m * m;
  float r = fma_(polynomial(s, kLogOdd), m, polynomial(s, kLogEven));
  return fma_(polynomial(r, m, kLog), s, m);
}

static inline float log_f32(float x) {
  bool tiny = x < kLeastNormal;
  float scaled = tiny ? x * 8388608.0f : x;
  uint32_t e = (bits_of(scaled) - kTwoThirdsBits) & 0xff800000u;
  float m = float_of(bits_of(scaled) - e) - 1.0f;
  float i = static_cast<float>(static_cast<int32_t>(e)) * kUlpOfOne;
  i = tiny ? i - 23.0f : i;
  float r = fma_(i, kLn2, log1p_part(m));
  r = x < __builtin_inff() ? r : x;  // inf and NaN
  r = x == 0.0f ? -__builtin_inff() : r;
  return x < 0.0f ? __builtin_nanf("") : r;
}

// log_f32's polynomial; 1 + x = 2^i * (1 + m), where m is computed from x, which keeps more
// digits than 1 + x.
static inline float log1p_f32(float x) {
  float t = 1.0f + x;
  uint32_t e = (bits_of(t) - kTwoThirdsBits) & 0xff800000u;
  float scale = float_of(0x40800000u - e);  // 4 * 2^-i
  float m = fma_(0.25f * scale, x, fma_(0.25f, scale, -1.0f));
  float i = static_cast<float>(static_cast<int32_t>(e)) * kUlpOfOne;
  float r = fma_(i, kLn2, log1p_part(m));
  r = t < __builtin_inff() ? r : t;  // inf and NaN
  r = t == 0.0f ? -__builtin_inff() : r;
  r = x == 0.0f ? x : r;  // -0
  return t < 0.0f ? __builtin_nanf("") : r;
}

// 2^n * (e^r - 1) + (2^n - 1) with |r| <= ln(2)/2: nothing cancels. Far from 0, e^x - 1.
static inline float expm1_f32(float x) {
  float shifted = fma_(x, kPerLn2, kRound);
  float n = shifted - kRound;
  float r = fma_(n, kMinusLn2[0], x);
  r = fma_(n, kMinusLn2[1], r);
  float p = fma_(polynomial(r, kExpm1) * r, r, r);
  float scale = float_of((bits_of(shifted) - bits_of(kRound) + 127u) << 23);
  float near = fma_(scale, p, scale - 1.0f);
  float found = __builtin_fabsf(x) < 80.0f ? near : exp_f32(x) - 1.0f;
  return x == 0.0f ? x : found;  // -0
}

// Near 0 an odd polynomial, else 1 - 2 / (e^(2|x|) + 1).
static inline float tanh_f32(float x) {
  float a = __builtin_fabsf(x);
  float e = exp_f32(a + a);
  float far = __builtin_copysignf(1.0f - 2.0f / (e + 1.0f), x);
  float z = x * x;
  float near = fma_(polynomial(z, kTanh) * z, x, x);
  return a < kTanhNear ? near : far;
}

static inline float sigmoid_f32(float x) {
  float e = exp_f32(-__builtin_fabsf(x));
  return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

// A polynomial near 0; elsewhere 1 - e^r with a polynomial r.
static inline float erf_f32(float x) {
  float t = __builtin_fabsf(x), s = x * x;
  float r = fma_(polynomial(t, kErfFirst), s, polynomial(t, kErfSecond));
  r = fma_(polynomial(r, t, kErfRest), t, -t);
  float far = __builtin_copysignf(1.0f - exp_f32(r), x);
  float near = fma_(polynomial(s, kErf), x, x);
  return t > kErfNear ? far : near;
}

}  // namespace NEEDLE_ISA
}  // namespace needle
