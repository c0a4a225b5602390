// CUDA's float16; see halves.h.
#pragma once

#include "cuda.h"
#include "halves.h"

using __half = needle::emulated::Half<needle::emulated::Float16>;
using half = __half;
using __half2 = needle::emulated::Pair<needle::emulated::Float16>;
using half2 = __half2;

inline half __float2half(float x) { return half(x); }
inline half __float2half_rn(float x) { return half(x); }
inline float __half2float(half x) { return x; }
inline half2 make_half2(half x, half y) { return half2(x, y); }
inline half2 __halves2half2(half x, half y) { return half2(x, y); }
inline half2 __float22half2_rn(float2 x) { return half2(x.x, x.y); }
inline float2 __half22float2(half2 x) { return make_float2(x.x, x.y); }
