// float32 functions that compilers vectorise: branch-free, within 4 ulp (test_nd_math.py
// measures them). float64 uses libm. Without FMA the same formulas lose up to one more ulp.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "common/scalar.h"

// A function of the C library that the compiler knows.
#define NEEDLE_C(name) __builtin_##name

namespace needle {
namespace NEEDLE_ISA {

constexpr float kInfinity = __builtin_inff();

static inline float power_f32(float a, float b) { return __builtin_powf(a, b); }

static inline float fma_(float a, float b, float c) {
#ifdef __FMA__
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

// e^x = 2^n * e^r with |r| <= ln(2)/2; 2^n in two factors, so that subnormal results are correct.
static inline float exp_f32(float x) {
  constexpr float kShift = 12582912.0f;   // 1.5 * 2^23: adding it rounds to an integer
  float clamped = x > 89.0f ? 89.0f : x;  // NaN passes both
  clamped = clamped < -104.5f ? -104.5f : clamped;
  float shifted = fma_(clamped, 1.44269504f, kShift);
  float n = shifted - kShift;
  float r = fma_(n, -0.693145752f, clamped);
  r = fma_(n, -1.42860677e-6f, r);
  float p = 1.38888889e-3f;
  p = fma_(p, r, 8.33333333e-3f);
  p = fma_(p, r, 4.16666667e-2f);
  p = fma_(p, r, 1.66666667e-1f);
  p = fma_(p, r, 0.5f);
  p = fma_(p, r * r, r) + 1.0f;
  // A signed shift with a bias, so that a garbage exponent from NaN stays defined.
  uint32_t e = bits_of(shifted) - bits_of(kShift) + 1024u;
  uint32_t half = e >> 1, rest = e - half;
  float scale1 = float_of((half - 512u + 127u) << 23);
  float scale2 = float_of((rest - 512u + 127u) << 23);
  return p * scale1 * scale2;
}

// Polynomial for log1p on [-1/3, 1/3] after N. Juffa (public posts on computing logf to < 1 ulp).
static inline float log1p_part(float m) {
  float s = m * m;
  float r = -0.130310059f, t = 0.140869141f;
  r = fma_(r, s, -0.121484190f);
  t = fma_(t, s, 0.139814854f);
  r = fma_(r, s, -0.166846052f);
  t = fma_(t, s, 0.200120345f);
  r = fma_(r, s, -0.249996200f);
  r = fma_(t, m, r);
  r = fma_(r, m, 0.333331972f);
  r = fma_(r, m, -0.5f);
  return fma_(r, s, m);
}

static inline float log_f32(float x) {
  bool tiny = x < 1.17549435e-38f;
  float scaled = tiny ? x * 8388608.0f : x;
  uint32_t e = (bits_of(scaled) - 0x3f2aaaabu) & 0xff800000u;
  float m = float_of(bits_of(scaled) - e) - 1.0f;
  float i = static_cast<float>(static_cast<int32_t>(e)) * 1.19209290e-7f;
  i = tiny ? i - 23.0f : i;
  float r = fma_(i, 0.693147182f, log1p_part(m));
  r = x < __builtin_inff() ? r : x;  // inf and NaN
  r = x == 0.0f ? -__builtin_inff() : r;
  return x < 0.0f ? __builtin_nanf("") : r;
}

// log_f32's polynomial; 1 + x = 2^i * (1 + m), of which m is computed from x, which has more
// digits.
static inline float log1p_f32(float x) {
  float t = 1.0f + x;
  uint32_t e = (bits_of(t) - 0x3f2aaaabu) & 0xff800000u;
  float scale = float_of(0x40800000u - e);  // 4 * 2^-i
  float m = fma_(0.25f * scale, x, fma_(0.25f, scale, -1.0f));
  float i = static_cast<float>(static_cast<int32_t>(e)) * 1.19209290e-7f;
  float r = fma_(i, 0.693147182f, log1p_part(m));
  r = t < __builtin_inff() ? r : t;  // inf and NaN
  r = t == 0.0f ? -__builtin_inff() : r;
  r = x == 0.0f ? x : r;  // -0
  return t < 0.0f ? __builtin_nanf("") : r;
}

// 2^n * (e^r - 1) + (2^n - 1) with |r| <= ln(2)/2: nothing cancels. Far from 0, e^x - 1.
static inline float expm1_f32(float x) {
  constexpr float kShift = 12582912.0f;
  float shifted = fma_(x, 1.44269504f, kShift);
  float n = shifted - kShift;
  float r = fma_(n, -0.693145752f, x);
  r = fma_(n, -1.42860677e-6f, r);
  float p = 1.98412698e-4f;
  p = fma_(p, r, 1.38888889e-3f);
  p = fma_(p, r, 8.33333333e-3f);
  p = fma_(p, r, 4.16666667e-2f);
  p = fma_(p, r, 1.66666667e-1f);
  p = fma_(p, r, 0.5f);
  p = fma_(p * r, r, r);
  float scale = float_of((bits_of(shifted) - bits_of(kShift) + 127u) << 23);
  float near = fma_(scale, p, scale - 1.0f);
  float found = __builtin_fabsf(x) < 80.0f ? near : exp_f32(x) - 1.0f;
  return x == 0.0f ? x : found;  // -0
}

// Near 0 an odd polynomial (coefficients from Cephes), else 1 - 2 / (e^(2|x|) + 1).
static inline float tanh_f32(float x) {
  float a = __builtin_fabsf(x);
  float e = exp_f32(a + a);
  float far = __builtin_copysignf(1.0f - 2.0f / (e + 1.0f), x);
  float z = x * x;
  float p = -5.70498872745e-3f;
  p = fma_(p, z, 2.06390887954e-2f);
  p = fma_(p, z, -5.37397155531e-2f);
  p = fma_(p, z, 1.33314422036e-1f);
  p = fma_(p, z, -3.33332819422e-1f);
  float near = fma_(p * z, x, x);
  return a < 0.625f ? near : far;
}

static inline float sigmoid_f32(float x) {
  float e = exp_f32(-__builtin_fabsf(x));
  return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

// Two polynomials after N. Juffa (public posts on computing erff to < 1 ulp).
static inline float erf_f32(float x) {
  float t = __builtin_fabsf(x), s = x * x;
  float r = fma_(-1.72853470e-5f, t, 3.83197126e-4f);
  float u = fma_(-3.88396438e-3f, t, 2.42546219e-2f);
  r = fma_(r, s, u);
  r = fma_(r, t, -1.06777877e-1f);
  r = fma_(r, t, -6.34846687e-1f);
  r = fma_(r, t, -1.28717512e-1f);
  r = fma_(r, t, -t);
  float far = __builtin_copysignf(1.0f - exp_f32(r), x);
  float p = -5.96761703e-4f;
  p = fma_(p, s, 4.99119423e-3f);
  p = fma_(p, s, -2.67681349e-2f);
  p = fma_(p, s, 1.12819925e-1f);
  p = fma_(p, s, -3.76125336e-1f);
  p = fma_(p, s, 1.28379166e-1f);
  float near = fma_(p, x, x);
  return t > 0.927734375f ? far : near;
}

}  // namespace NEEDLE_ISA
}  // namespace needle
