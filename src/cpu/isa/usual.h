// Functions for usual arguments, which compilers vectorise; the C library handles other arguments.
//
// Usual<Op, T> describes a functor of functors.h: `holds(x...)` says whether arguments are usual,
// `at(x...)` computes the function for usual arguments. Without FMA, no functor is described.
#pragma once

#include "common/functors.h"

namespace needle {
namespace NEEDLE_ISA {

template <class Op, class T>
struct Usual {
  static constexpr bool kExists = false;
};

#ifdef __FMA__

static inline uint64_t bits_of(double x) {
  uint64_t u;
  __builtin_memcpy(&u, &x, sizeof u);
  return u;
}
static inline double double_of(uint64_t u) {
  double x;
  __builtin_memcpy(&x, &u, sizeof x);
  return x;
}
static inline float trunc_(float x) { return __builtin_truncf(x); }
static inline double trunc_(double x) { return __builtin_trunc(x); }
static inline float fabs_(float x) { return __builtin_fabsf(x); }
static inline double fabs_(double x) { return __builtin_fabs(x); }
static inline float copysign_(float x, float y) { return __builtin_copysignf(x, y); }
static inline double copysign_(double x, double y) { return __builtin_copysign(x, y); }

// The sine of x + kTurn * pi / 2: subtracts a multiple of pi / 2 in three parts, and computes a
// polynomial of the rest.
template <uint32_t kTurn>
struct UsualAngle {
  static constexpr bool kExists = true;
  static inline bool holds(float x) { return !(fabs_(x) > kAngleMost); }
  static inline float at(float x) {
    const float shifted = fma_(x, kPerHalfPi, kRound);
    const float n = shifted - kRound;
    float r = fma_(n, kMinusHalfPi[0], x);
    r = fma_(n, kMinusHalfPi[1], r);
    r = fma_(n, kMinusHalfPi[2], r);
    const float z = r * r;
    const float odd = fma_(polynomial(z, kSine) * z, r, r);
    const float even = fma_(polynomial(z, kCosine), z, 1.0f);
    const uint32_t quarter = bits_of(shifted) + kTurn;
    const float magnitude = (quarter & 1u) != 0 ? even : odd;
    const float found = float_of(bits_of(magnitude) ^ ((quarter & 2u) << 30));
    return (kTurn == 0) & (x == 0.0f) ? x : found;  // -0
  }
};
template <>
struct Usual<fn::sin, float> : UsualAngle<0> {};
template <>
struct Usual<fn::cos, float> : UsualAngle<1> {};

// Remainders. Quotients are exact up to kMost; if one was rounded up, the remainder is below 0, and
// y is added.
template <class T>
struct UsualRest {
  static constexpr bool kExists = true;
  static constexpr T kMost = T(sizeof(T) == 4 ? kQuotientMost : kQuotientMostWide);
  static inline bool holds(T a, T b) {
    return !(fabs_(a / b) > kMost) & !(fabs_(b) == T(__builtin_inf()));
  }
  static inline T rest(T a, T b) {
    const T x = fabs_(a), y = fabs_(b);
    const T found = fma_(-trunc_(x / y), y, x);
    return copysign_(found < T(0) ? found + y : found, a);
  }
};
template <>
struct Usual<fn::fmod, float> : UsualRest<float> {
  static inline float at(float a, float b) { return rest(a, b); }
};
template <>
struct Usual<fn::fmod, double> : UsualRest<double> {
  static inline double at(double a, double b) { return rest(a, b); }
};
template <>
struct Usual<fn::remainder, float> : UsualRest<float> {
  static inline float at(float a, float b) { return fn::floored_rest(b, rest(a, b)); }
};
template <>
struct Usual<fn::remainder, double> : UsualRest<double> {
  static inline double at(double a, double b) { return fn::floored_rest(b, rest(a, b)); }
};
template <>
struct Usual<fn::floor_divide, float> : UsualRest<float> {
  static inline float at(float a, float b) { return fn::floored_quotient(a, b, rest(a, b)); }
};
template <>
struct Usual<fn::floor_divide, double> : UsualRest<double> {
  static inline double at(double a, double b) { return fn::floored_quotient(a, b, rest(a, b)); }
};

// |a|^b = 2^(b * log2(|a|)) in float64, with the sign of a if b is odd.
template <>
struct Usual<fn::power, float> {
  static constexpr bool kExists = true;
  static inline bool holds(float a, float b) {
    const float x = fabs_(a);
    return (x >= 1.17549435e-38f) & (x <= 3.40282347e38f) & (fabs_(b) <= 3.40282347e38f);
  }
  // By the series of the inverse hyperbolic tangent, to 36 bits.
  static inline double log2(double x) {
    const uint64_t bits = bits_of(x);
    const int64_t e = static_cast<int64_t>(bits - kSqrtHalfBits) >> 52;
    const double m = double_of(bits - (static_cast<uint64_t>(e) << 52));
    const double s = (m - 1.0) / (m + 1.0), z = s * s;
    return fma_(polynomial(z, kLog2) * s, kPerLn2Wide,
                static_cast<double>(static_cast<int32_t>(e)));
  }
  static inline double exp2(double t) {
    t = t > kExp2Most ? kExp2Most : t;
    t = t < -kExp2Most ? -kExp2Most : t;
    const double shifted = t + kRoundWide;
    const double f = (t - (shifted - kRoundWide)) * kLn2Wide;
    return polynomial(f, kExp2) * double_of((bits_of(shifted) + 1023u) << 52);
  }
  static inline float at(float a, float b) {
    const float found = static_cast<float>(exp2(b * log2(fabs_(a))));
    const float half = b * 0.5f;
    const bool whole = trunc_(b) == b, even = trunc_(half) == half, below = a < 0.0f;
    const float signed_ = below & !even ? -found : found;
    return below & !whole ? __builtin_nanf("") : signed_;
  }
};

#endif

// Op::at for any arguments; usual arguments give the same bits at every position.
template <class Op, class T, class... Args>
static inline auto at_any(Args... x) {
  if constexpr (Usual<Op, T>::kExists)
    return Usual<Op, T>::holds(x...) ? Usual<Op, T>::at(x...) : Op::at(x...);
  else
    return Op::at(x...);
}

constexpr int64_t kUsualBlock = 256;  // elements that are tested together

template <class Op, class T>
static void usual_row(const T* __restrict x, T* __restrict o, int64_t n) {
  for (int64_t begin = 0; begin < n; begin += kUsualBlock) {
    const int64_t end = n - begin < kUsualBlock ? n : begin + kUsualBlock;
    int unusual = 0;
    for (int64_t i = begin; i < end; ++i) unusual |= !Usual<Op, T>::holds(x[i]);
    if (unusual)
      for (int64_t i = begin; i < end; ++i) o[i] = at_any<Op, T>(x[i]);
    else
      for (int64_t i = begin; i < end; ++i) o[i] = Usual<Op, T>::at(x[i]);
  }
}

// kA and kB, 0 or 1, are the strides.
template <class Op, class T, int kA, int kB>
static void usual_row(const T* a, const T* b, T* __restrict o, int64_t n) {
  for (int64_t begin = 0; begin < n; begin += kUsualBlock) {
    const int64_t end = n - begin < kUsualBlock ? n : begin + kUsualBlock;
    int unusual = 0;
    for (int64_t i = begin; i < end; ++i) unusual |= !Usual<Op, T>::holds(a[i * kA], b[i * kB]);
    if (unusual)
      for (int64_t i = begin; i < end; ++i) o[i] = at_any<Op, T>(a[i * kA], b[i * kB]);
    else
      for (int64_t i = begin; i < end; ++i) o[i] = Usual<Op, T>::at(a[i * kA], b[i * kB]);
  }
}

}  // namespace NEEDLE_ISA
}  // namespace needle
