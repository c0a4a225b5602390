// The functions that functors.h leaves to a device: here from CUDA's math library, which nvcc
// compiles without fast-math. Their documented errors are within the table of docs/dtypes.md,
// except for float64's sin, cos and power (2 units in the last place).
#pragma once

#include <math.h>

#include "common/scalar.h"

#define NEEDLE_C(name) ::name

namespace needle {
namespace NEEDLE_ISA {

constexpr float kInfinity = HUGE_VALF;

NEEDLE_HD static inline float exp_f32(float x) { return ::expf(x); }
NEEDLE_HD static inline float log_f32(float x) { return ::logf(x); }
NEEDLE_HD static inline float expm1_f32(float x) { return ::expm1f(x); }
NEEDLE_HD static inline float log1p_f32(float x) { return ::log1pf(x); }
NEEDLE_HD static inline float tanh_f32(float x) { return ::tanhf(x); }
NEEDLE_HD static inline float erf_f32(float x) { return ::erff(x); }
NEEDLE_HD static inline float sigmoid_f32(float x) {
  const float e = ::expf(-::fabsf(x));
  return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}
// powf may be off by 4 ulp; a float's power is accurate enough if computed in double.
NEEDLE_HD static inline float power_f32(float a, float b) {
  return static_cast<float>(::pow(static_cast<double>(a), static_cast<double>(b)));
}

}  // namespace NEEDLE_ISA
}  // namespace needle
