// The scalar definition of each row in common/ops.inc, with NumPy's treatment of NaN, infinities
// and integer overflow. C is the compute type.
#pragma once

#include "common/scalar.h"
#ifdef NEEDLE_ON_CUDA
#include "cuda/math.h"
#else
#include "cpu/isa/math.h"
#endif

namespace needle {
namespace NEEDLE_ISA {
namespace fn {

#define NEEDLE_FN(name)                \
  struct name {                        \
    template <class C>                 \
    NEEDLE_HD static inline C at(C x); \
  };                                   \
  template <class C>                   \
  NEEDLE_HD inline C name::at([[maybe_unused]] C x)

NEEDLE_FN(negative) {
  if constexpr (Kind<C>::floating)
    return -x;
  else if constexpr (Kind<C>::boolean)
    return !x;
  else
    return wrap_sub(C(0), x);
}
NEEDLE_FN(abs) {
  if constexpr (sizeof(C) == 4 && Kind<C>::floating)
    return NEEDLE_C(fabsf)(x);
  else if constexpr (Kind<C>::floating)
    return NEEDLE_C(fabs)(x);
  else if constexpr (Kind<C>::boolean)
    return x;
  else
    return x < 0 ? wrap_sub(C(0), x) : x;
}
NEEDLE_FN(sign) {
  if constexpr (Kind<C>::boolean) return x;
  return x > C(0) ? C(1) : (x < C(0) ? C(-1) : (x == C(0) ? C(0) : x));
}
NEEDLE_FN(relu) {
  if constexpr (Kind<C>::boolean) return x;
  return x < C(0) ? C(0) : x;  // NaN is not less than 0
}
NEEDLE_FN(square) {
  if constexpr (Kind<C>::floating)
    return x * x;
  else if constexpr (Kind<C>::boolean)
    return x;
  else
    return wrap_mul(x, x);
}

// pow(x, 0.5) equals sqrt(x), except that it is inf at -inf, and 0 at -0.
NEEDLE_FN(half_power) {
  if constexpr (!Kind<C>::floating)
    return x;
  else if constexpr (sizeof(C) == 4)
    return x == -kInfinity ? kInfinity : NEEDLE_C(sqrtf)(x) + 0.0f;
  else
    return x == -double(kInfinity) ? double(kInfinity) : NEEDLE_C(sqrt)(x) + 0.0;
}

// Functions with their own float32 version, and functions that use libm for both types.
#define NEEDLE_FLOAT_FN(name, f32, f64) \
  NEEDLE_FN(name) {                     \
    if constexpr (!Kind<C>::floating)   \
      return x;                         \
    else if constexpr (sizeof(C) == 4)  \
      return f32;                       \
    else                                \
      return f64;                       \
  }

NEEDLE_HD static inline double sigmoid_f64(double x) {
  double e = ::exp(-NEEDLE_C(fabs)(x));
  return (x < 0 ? e : 1.0) / (1.0 + e);
}

// p[0] + p[1] x + ... + p[7] x^7
NEEDLE_HD static inline double polynomial(const double (&p)[8], double x) {
  double y = p[7];
  for (int i = 6; i >= 0; --i) y = y * x + p[i];
  return y;
}

// The quantile of the normal distribution, to about 1e-16 (M. J. Wichura, "Algorithm AS 241: The
// percentage points of the normal distribution", Applied Statistics 37, 1988).
NEEDLE_HD static inline double erfinv_f64(double x) {
  constexpr double a[8] = {3.3871328727963666080e0, 1.3314166789178437745e2,
                           1.9715909503065514427e3, 1.3731693765509461125e4,
                           4.5921953931549871457e4, 6.7265770927008700853e4,
                           3.3430575583588128105e4, 2.5090809287301226727e3};
  constexpr double b[8] = {1.0,
                           4.2313330701600911252e1,
                           6.8718700749205790830e2,
                           5.3941960214247511077e3,
                           2.1213794301586595867e4,
                           3.9307895800092710610e4,
                           2.8729085735721942674e4,
                           5.2264952788528545610e3};
  constexpr double c[8] = {1.42343711074968357734e0,  4.63033784615654529590e0,
                           5.76949722146069140550e0,  3.64784832476320460504e0,
                           1.27045825245236838258e0,  2.41780725177450611770e-1,
                           2.27238449892691845833e-2, 7.74545014278341407640e-4};
  constexpr double d[8] = {1.0,
                           2.05319162663775882187e0,
                           1.67638483018380384940e0,
                           6.89767334985100004550e-1,
                           1.48103976427480074590e-1,
                           1.51986665636164571966e-2,
                           5.47593808499534494600e-4,
                           1.05075007164441684324e-9};
  constexpr double e[8] = {6.65790464350110377720e0,  5.46378491116411436990e0,
                           1.78482653991729133580e0,  2.96560571828504891230e-1,
                           2.65321895265761230930e-2, 1.24266094738807843860e-3,
                           2.71155556874348757815e-5, 2.01033439929228813265e-7};
  constexpr double f[8] = {1.0,
                           5.99832206555887937690e-1,
                           1.36929880922735805310e-1,
                           1.48753612908506148525e-2,
                           7.86869131145613259100e-4,
                           1.84631831751005468180e-5,
                           1.42151175831644588870e-7,
                           2.04426310338993978564e-15};
  constexpr double kHalfRoot = 0.70710678118654752440;  // scales a normal quantile to erfinv
  if (!(x > -1 && x < 1)) return x * kInfinity * (x == 1 || x == -1 ? 1.0 : 0.0);
  const double q = 0.5 * x;
  if (q >= -0.425 && q <= 0.425) {
    const double r = 0.180625 - q * q;
    return kHalfRoot * q * polynomial(a, r) / polynomial(b, r);
  }
  double r = NEEDLE_C(sqrt)(-NEEDLE_C(log)(0.5 - NEEDLE_C(fabs)(q)));
  r = r <= 5 ? polynomial(c, r - 1.6) / polynomial(d, r - 1.6)
             : polynomial(e, r - 5) / polynomial(f, r - 5);
  return q < 0 ? -kHalfRoot * r : kHalfRoot * r;
}

NEEDLE_FLOAT_FN(floor, NEEDLE_C(floorf)(x), NEEDLE_C(floor)(x))
NEEDLE_FLOAT_FN(ceil, NEEDLE_C(ceilf)(x), NEEDLE_C(ceil)(x))
NEEDLE_FLOAT_FN(round, NEEDLE_C(rintf)(x), NEEDLE_C(rint)(x))  // halves to even, as NumPy
NEEDLE_FLOAT_FN(trunc, NEEDLE_C(truncf)(x), NEEDLE_C(trunc)(x))
NEEDLE_FLOAT_FN(exp, exp_f32(x), NEEDLE_C(exp)(x))
NEEDLE_FLOAT_FN(exp2, NEEDLE_C(exp2f)(x), NEEDLE_C(exp2)(x))
NEEDLE_FLOAT_FN(expm1, expm1_f32(x), NEEDLE_C(expm1)(x))
NEEDLE_FLOAT_FN(log, log_f32(x), NEEDLE_C(log)(x))
NEEDLE_FLOAT_FN(log2, NEEDLE_C(log2f)(x), NEEDLE_C(log2)(x))
NEEDLE_FLOAT_FN(log10, NEEDLE_C(log10f)(x), NEEDLE_C(log10)(x))
NEEDLE_FLOAT_FN(log1p, log1p_f32(x), NEEDLE_C(log1p)(x))
NEEDLE_FLOAT_FN(sin, NEEDLE_C(sinf)(x), NEEDLE_C(sin)(x))
NEEDLE_FLOAT_FN(cos, NEEDLE_C(cosf)(x), NEEDLE_C(cos)(x))
NEEDLE_FLOAT_FN(tan, NEEDLE_C(tanf)(x), NEEDLE_C(tan)(x))
NEEDLE_FLOAT_FN(asin, NEEDLE_C(asinf)(x), NEEDLE_C(asin)(x))
NEEDLE_FLOAT_FN(acos, NEEDLE_C(acosf)(x), NEEDLE_C(acos)(x))
NEEDLE_FLOAT_FN(atan, NEEDLE_C(atanf)(x), NEEDLE_C(atan)(x))
NEEDLE_FLOAT_FN(sinh, NEEDLE_C(sinhf)(x), NEEDLE_C(sinh)(x))
NEEDLE_FLOAT_FN(cosh, NEEDLE_C(coshf)(x), NEEDLE_C(cosh)(x))
NEEDLE_FLOAT_FN(tanh, tanh_f32(x), NEEDLE_C(tanh)(x))
NEEDLE_FLOAT_FN(asinh, NEEDLE_C(asinhf)(x), NEEDLE_C(asinh)(x))
NEEDLE_FLOAT_FN(acosh, NEEDLE_C(acoshf)(x), NEEDLE_C(acosh)(x))
NEEDLE_FLOAT_FN(atanh, NEEDLE_C(atanhf)(x), NEEDLE_C(atanh)(x))
NEEDLE_FLOAT_FN(sqrt, NEEDLE_C(sqrtf)(x), NEEDLE_C(sqrt)(x))
NEEDLE_FLOAT_FN(rsqrt, 1.0f / NEEDLE_C(sqrtf)(x), 1.0 / NEEDLE_C(sqrt)(x))
NEEDLE_FLOAT_FN(reciprocal, 1.0f / x, 1.0 / x)
NEEDLE_FLOAT_FN(sigmoid, sigmoid_f32(x), sigmoid_f64(x))
NEEDLE_FLOAT_FN(erf, erf_f32(x), NEEDLE_C(erf)(x))
NEEDLE_FLOAT_FN(erfinv, static_cast<float>(erfinv_f64(x)), erfinv_f64(x))

#define NEEDLE_PREDICATE_FN(name, expression) \
  struct name {                               \
    template <class C>                        \
    NEEDLE_HD static inline bool at(C x) {    \
      return expression;                      \
    }                                         \
  };

NEEDLE_PREDICATE_FN(logical_not, x == C(0))
NEEDLE_PREDICATE_FN(isnan, x != x)
NEEDLE_PREDICATE_FN(isfinite, x - x == C(0))

#define NEEDLE_FN2(name)                    \
  struct name {                             \
    template <class C>                      \
    NEEDLE_HD static inline C at(C a, C b); \
  };                                        \
  template <class C>                        \
  NEEDLE_HD inline C name::at([[maybe_unused]] C a, [[maybe_unused]] C b)

NEEDLE_FN2(add) {
  if constexpr (Kind<C>::floating)
    return a + b;
  else if constexpr (Kind<C>::boolean)
    return a | b;
  else
    return wrap_add(a, b);
}
NEEDLE_FN2(subtract) {
  if constexpr (Kind<C>::floating)
    return a - b;
  else if constexpr (Kind<C>::boolean)
    return a ^ b;
  else
    return wrap_sub(a, b);
}
NEEDLE_FN2(multiply) {
  if constexpr (Kind<C>::floating)
    return a * b;
  else if constexpr (Kind<C>::boolean)
    return a & b;
  else
    return wrap_mul(a, b);
}
NEEDLE_FN2(divide) {
  if constexpr (Kind<C>::floating) return a / b;
  return a;
}
NEEDLE_FN2(power) {
  if constexpr (Kind<C>::floating && sizeof(C) == 4) {
    return power_f32(a, b);
  } else if constexpr (Kind<C>::floating) {
    return NEEDLE_C(pow)(a, b);
  } else if constexpr (Kind<C>::boolean) {
    return a | !b;
  } else {
    C result = 1;  // nd::binary refuses negative exponents
    for (C e = b; e > 0; e >>= 1) {
      if (e & 1) result = wrap_mul(result, a);
      a = wrap_mul(a, a);
    }
    return result;
  }
}
NEEDLE_FN2(maximum) { return (a > b) | (a != a) ? a : b; }  // NaN on either side wins
NEEDLE_FN2(minimum) { return (a < b) | (a != a) ? a : b; }

NEEDLE_FN2(atan2) {
  if constexpr (!Kind<C>::floating)
    return a;
  else if constexpr (sizeof(C) == 4)
    return NEEDLE_C(atan2f)(a, b);
  else
    return NEEDLE_C(atan2)(a, b);
}

template <class C>
NEEDLE_HD static inline bool below_zero(C x) {
  return x < C(0);
}

// Integer divisions by 0 give 0; dividing the least integer by -1 does not trap.
NEEDLE_FN2(fmod) {
  if constexpr (Kind<C>::floating && sizeof(C) == 4)
    return NEEDLE_C(fmodf)(a, b);
  else if constexpr (Kind<C>::floating)
    return NEEDLE_C(fmod)(a, b);
  else if constexpr (Kind<C>::boolean)
    return a;
  else
    return b == 0 || b == -1 ? C(0) : a % b;
}
// remainder and floor_divide of floats; `rest` is the fmod.
template <class C>
NEEDLE_HD static inline C floored_rest(C b, C rest) {
  const C zero = b < C(0) ? C(-0.0) : C(0);
  const C moved = below_zero(rest) != below_zero(b) ? rest + b : rest;
  return rest == C(0) ? zero : moved;
}
// As in CPython and NumPy: subtracting the remainder from a makes the quotient nearly whole.
template <class C>
NEEDLE_HD static inline C floored_quotient(C a, C b, C rest) {
  C quotient = (a - rest) / b;
  quotient -= (rest != C(0)) & (below_zero(rest) != below_zero(b)) ? C(1) : C(0);
  const C below = floor::at(quotient);
  const C whole = quotient - below > C(0.5) ? below + C(1) : below;
  const C known = quotient == C(0) ? a / b * C(0) : whole;  // a zero with the quotient's sign
  return b == C(0) ? a / b : known;
}
NEEDLE_FN2(remainder) {
  const C rest = fmod::at(a, b);
  if constexpr (Kind<C>::boolean) {
    return rest;
  } else if constexpr (Kind<C>::floating) {
    return floored_rest(b, rest);
  } else {
    return rest != 0 && below_zero(rest) != below_zero(b) ? rest + b : rest;
  }
}
NEEDLE_FN2(floor_divide) {
  if constexpr (Kind<C>::boolean) {
    return a;
  } else if constexpr (Kind<C>::floating) {
    return floored_quotient(a, b, fmod::at(a, b));
  } else {
    if (b == 0) return 0;
    if (b == -1) return wrap_sub(C(0), a);
    const C quotient = a / b;
    return a % b != 0 && below_zero(a) != below_zero(b) ? quotient - 1 : quotient;
  }
}

// The gradient for relu's input, from the gradient a for its output b.
NEEDLE_FN2(relu_grad) { return b > C(0) ? a : C(0); }

#define NEEDLE_PREDICATE_FN2(name, expression)  \
  struct name {                                 \
    template <class C>                          \
    NEEDLE_HD static inline bool at(C a, C b) { \
      return expression;                        \
    }                                           \
  };

NEEDLE_PREDICATE_FN2(equal, a == b)
NEEDLE_PREDICATE_FN2(not_equal, a != b)
NEEDLE_PREDICATE_FN2(less, a < b)
NEEDLE_PREDICATE_FN2(less_equal, a <= b)
NEEDLE_PREDICATE_FN2(greater, a > b)
NEEDLE_PREDICATE_FN2(greater_equal, a >= b)
NEEDLE_PREDICATE_FN2(logical_and, (a != C(0)) & (b != C(0)))
NEEDLE_PREDICATE_FN2(logical_or, (a != C(0)) | (b != C(0)))
NEEDLE_PREDICATE_FN2(logical_xor, (a != C(0)) != (b != C(0)))

NEEDLE_FN(bitwise_not) {
  if constexpr (Kind<C>::boolean)
    return !x;
  else
    return ~x;
}
NEEDLE_FN2(bitwise_and) { return a & b; }
NEEDLE_FN2(bitwise_or) { return a | b; }
NEEDLE_FN2(bitwise_xor) { return a ^ b; }
// As in NumPy: a shift by all bits, or by a negative number, leaves zeros or copies of the sign.
NEEDLE_FN2(left_shift) {
  using U = typename UnsignedOf<C>::type;
  const U count = static_cast<U>(b);
  return count < 8 * sizeof(C) ? static_cast<C>(static_cast<U>(a) << count) : C(0);
}
NEEDLE_FN2(right_shift) {
  using U = typename UnsignedOf<C>::type;
  const U count = static_cast<U>(b);
  return a >> (count < 8 * sizeof(C) ? count : static_cast<U>(8 * sizeof(C) - 1));
}

}  // namespace fn
}  // namespace NEEDLE_ISA
}  // namespace needle
