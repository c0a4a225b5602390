// CUDA's bfloat16; see halves.h.
#pragma once

#include "cuda.h"
#include "halves.h"

using __nv_bfloat16 = needle::emulated::Half<needle::emulated::Bfloat16>;
using nv_bfloat16 = __nv_bfloat16;
using __nv_bfloat162 = needle::emulated::Pair<needle::emulated::Bfloat16>;
using nv_bfloat162 = __nv_bfloat162;

inline nv_bfloat16 __float2bfloat16(float x) { return nv_bfloat16(x); }
inline nv_bfloat16 __float2bfloat16_rn(float x) { return nv_bfloat16(x); }
inline float __bfloat162float(nv_bfloat16 x) { return x; }
inline nv_bfloat162 __halves2bfloat162(nv_bfloat16 x, nv_bfloat16 y) { return nv_bfloat162(x, y); }
inline nv_bfloat162 __float22bfloat162_rn(float2 x) { return nv_bfloat162(x.x, x.y); }
inline float2 __bfloat1622float2(nv_bfloat162 x) { return make_float2(x.x, x.y); }
