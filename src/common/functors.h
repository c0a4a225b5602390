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

// pow(x, 0.5) equals sqrt(x) except at -inf (inf) and -0 (0).
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

NEEDLE_FLOAT_FN(floor, NEEDLE_C(floorf)(x), NEEDLE_C(floor)(x))
NEEDLE_FLOAT_FN(ceil, NEEDLE_C(ceilf)(x), NEEDLE_C(ceil)(x))
NEEDLE_FLOAT_FN(exp, exp_f32(x), NEEDLE_C(exp)(x))
NEEDLE_FLOAT_FN(expm1, NEEDLE_C(expm1f)(x), NEEDLE_C(expm1)(x))
NEEDLE_FLOAT_FN(log, log_f32(x), NEEDLE_C(log)(x))
NEEDLE_FLOAT_FN(log1p, NEEDLE_C(log1pf)(x), NEEDLE_C(log1p)(x))
NEEDLE_FLOAT_FN(sin, NEEDLE_C(sinf)(x), NEEDLE_C(sin)(x))
NEEDLE_FLOAT_FN(cos, NEEDLE_C(cosf)(x), NEEDLE_C(cos)(x))
NEEDLE_FLOAT_FN(tanh, tanh_f32(x), NEEDLE_C(tanh)(x))
NEEDLE_FLOAT_FN(sqrt, NEEDLE_C(sqrtf)(x), NEEDLE_C(sqrt)(x))
NEEDLE_FLOAT_FN(rsqrt, 1.0f / NEEDLE_C(sqrtf)(x), 1.0 / NEEDLE_C(sqrt)(x))
NEEDLE_FLOAT_FN(reciprocal, 1.0f / x, 1.0 / x)
NEEDLE_FLOAT_FN(sigmoid, sigmoid_f32(x), sigmoid_f64(x))
NEEDLE_FLOAT_FN(erf, erf_f32(x), NEEDLE_C(erf)(x))

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
    C result = 1;  // the driver refuses negative exponents
    for (C e = b; e > 0; e >>= 1) {
      if (e & 1) result = wrap_mul(result, a);
      a = wrap_mul(a, a);
    }
    return result;
  }
}
NEEDLE_FN2(maximum) { return (a > b) | (a != a) ? a : b; }  // NaN on either side wins
NEEDLE_FN2(minimum) { return (a < b) | (a != a) ? a : b; }

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

}  // namespace fn
}  // namespace NEEDLE_ISA
}  // namespace needle
