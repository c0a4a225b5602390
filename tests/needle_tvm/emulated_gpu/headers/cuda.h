// The part of NVIDIA's headers that TVM's generated CUDA source uses, on top of needle's emulated
// CUDA runtime: vectors, and device functions.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "cuda_runtime.h"

#define __align__(bytes) alignas(bytes)

#define NEEDLE_VECTORS(type, name)                                                       \
  struct alignas(sizeof(type)) name##1 { type x; };                                      \
  struct alignas(2 * sizeof(type)) name##2 { type x, y; };                               \
  struct name##3 { type x, y, z; };                                                      \
  struct alignas(sizeof(type) < 8 ? 4 * sizeof(type) : 16) name##4 { type x, y, z, w; }; \
  inline name##1 make_##name##1(type x) { return {x}; }                                  \
  inline name##2 make_##name##2(type x, type y) { return {x, y}; }                       \
  inline name##3 make_##name##3(type x, type y, type z) { return {x, y, z}; }            \
  inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }

NEEDLE_VECTORS(float, float)
NEEDLE_VECTORS(double, double)
NEEDLE_VECTORS(int, int)
NEEDLE_VECTORS(unsigned, uint)
NEEDLE_VECTORS(signed char, char)
NEEDLE_VECTORS(unsigned char, uchar)
NEEDLE_VECTORS(short, short)
NEEDLE_VECTORS(unsigned short, ushort)
NEEDLE_VECTORS(long long, longlong)
NEEDLE_VECTORS(unsigned long long, ulonglong)

template <class T, class U>
auto max(T a, U b) {
  using V = std::common_type_t<T, U>;
  if constexpr (std::is_floating_point_v<V>) return std::fmax(V(a), V(b));
  return std::max<V>(a, b);
}
template <class T, class U>
auto min(T a, U b) {
  using V = std::common_type_t<T, U>;
  if constexpr (std::is_floating_point_v<V>) return std::fmin(V(a), V(b));
  return std::min<V>(a, b);
}
template <class T>
T __ldg(const T* at) {
  return *at;
}
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline double rsqrt(double x) { return 1 / std::sqrt(x); }
inline unsigned __activemask() { return 0xffffffffu; }
inline float __int_as_float(int bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}
inline int __float_as_int(float x) {
  int bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits;
}

// The value of lane `from` in each run of `width` lanes; the thread's own if there is no such lane.
template <class T>
T needle_shuffle(T value, int from, int width) {
  const int lane = emulated::lane(), first = lane / width * width;
  uint64_t bits = 0;
  __builtin_memcpy(&bits, &value, sizeof value);
  bits = emulated::shuffle(bits, from >= first && from < first + width ? from : lane);
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}
template <class T>
T __shfl_down_sync(unsigned, T value, unsigned delta, int width) {
  return needle_shuffle(value, emulated::lane() + static_cast<int>(delta), width);
}
template <class T>
T __shfl_up_sync(unsigned, T value, unsigned delta, int width) {
  return needle_shuffle(value, emulated::lane() - static_cast<int>(delta), width);
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask, int width = 32) {
  return needle_shuffle(value, emulated::lane() ^ mask, width);
}
template <class T>
T __shfl_sync(unsigned, T value, int lane, int width = 32) {
  return needle_shuffle(value, emulated::lane() / width * width + lane % width, width);
}
