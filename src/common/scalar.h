// Storage and compute types of the elements, for kernels of all devices. The CPU compiles this file
// once per instruction set, each time inside another namespace (NEEDLE_ISA). It uses no library
// templates: a weak symbol shared between the variants could carry AVX-512 code into the baseline.
#pragma once

#include <stdint.h>

#ifdef __CUDACC__
#define NEEDLE_HD __host__ __device__
#else
#define NEEDLE_HD
#endif

namespace needle {
namespace NEEDLE_ISA {

struct Bool {
  uint8_t raw;
};
struct Float16 {
  uint16_t raw;
};
struct Bfloat16 {
  uint16_t raw;
};

template <class S>
struct Io {
  using C = S;
  NEEDLE_HD static inline C load(S v) { return v; }
  NEEDLE_HD static inline S store(C v) { return v; }
};

// Integers of 8 and 16 bits are computed as int32; a store keeps the low bits.
template <class S>
struct SmallIo {
  using C = int32_t;
  NEEDLE_HD static inline C load(S v) { return v; }
  NEEDLE_HD static inline S store(C v) { return static_cast<S>(v); }
};
template <>
struct Io<int8_t> : SmallIo<int8_t> {};
template <>
struct Io<uint8_t> : SmallIo<uint8_t> {};
template <>
struct Io<int16_t> : SmallIo<int16_t> {};
template <>
struct Io<uint16_t> : SmallIo<uint16_t> {};

template <>
struct Io<Bool> {
  using C = bool;
  NEEDLE_HD static inline bool load(Bool v) {
    return v.raw != 0;
  }  // foreign memory may hold other values
  NEEDLE_HD static inline Bool store(bool v) { return Bool{static_cast<uint8_t>(v)}; }
};

NEEDLE_HD static inline uint32_t bits_of(float x) {
#ifdef __CUDA_ARCH__
  return __float_as_uint(x);
#else
  uint32_t u;
  __builtin_memcpy(&u, &x, sizeof u);
  return u;
#endif
}

NEEDLE_HD static inline float float_of(uint32_t u) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(u);
#else
  float x;
  __builtin_memcpy(&x, &u, sizeof x);
  return x;
#endif
}

// Half-precision conversions are branch-free integer arithmetic, which compilers vectorise; stores
// round to nearest, ties to even, and keep NaN. After F. Giesen, "Float->half variants" (public
// domain), with the same bits as x86's F16C.
template <>
struct Io<Float16> {
  using C = float;
  NEEDLE_HD static inline float load(Float16 v) {
    const uint32_t magnitude = v.raw & 0x7fffu, sign = (v.raw & 0x8000u) << 16;
    const uint32_t normal = (magnitude << 13) + (112u << 23);
    const uint32_t special = (magnitude << 13) + (224u << 23);  // infinity and NaN
    const uint32_t quiet = magnitude > 0x7c00u ? 0x00400000u : 0u;
    // A subnormal: put it into the fraction of 2^-14, then subtract 2^-14.
    const uint32_t small = bits_of(float_of((magnitude << 13) + (113u << 23)) - 6.103515625e-5f);
    uint32_t u = magnitude < 0x0400u ? small : normal;
    u = magnitude >= 0x7c00u ? special | quiet : u;
    return float_of(u | sign);
  }
  NEEDLE_HD static inline Float16 store(float v) {
    const uint32_t u = bits_of(v), magnitude = u & 0x7fffffffu, sign = (u >> 16) & 0x8000u;
    const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    // Adding 0.5 aligns the last bit of the fraction with float16's smallest subnormal.
    const uint32_t small = bits_of(float_of(magnitude) + 0.5f) - (126u << 23);
    const uint32_t nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
    uint32_t h = magnitude < (113u << 23) ? small : normal;
    h = magnitude >= (143u << 23) ? 0x7c00u : h;
    h = magnitude > 0x7f800000u ? nan : h;
    return Float16{static_cast<uint16_t>(h | sign)};
  }
};

template <>
struct Io<Bfloat16> {
  using C = float;
  NEEDLE_HD static inline float load(Bfloat16 v) {
    return float_of(static_cast<uint32_t>(v.raw) << 16);
  }
  NEEDLE_HD static inline Bfloat16 store(float v) {
    const uint32_t u = bits_of(v), rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    const uint32_t nan = (u >> 16) | 0x40u;
    return Bfloat16{static_cast<uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? nan : rounded)};
  }
};

template <class S>
struct IsHalf {
  static constexpr bool value = false;
};
template <>
struct IsHalf<Float16> {
  static constexpr bool value = true;
};
template <>
struct IsHalf<Bfloat16> {
  static constexpr bool value = true;
};

template <class C>
struct Kind {
  static constexpr bool floating = false, boolean = false;
};
template <>
struct Kind<float> {
  static constexpr bool floating = true, boolean = false;
};
template <>
struct Kind<double> {
  static constexpr bool floating = true, boolean = false;
};
template <>
struct Kind<bool> {
  static constexpr bool floating = false, boolean = true;
};

template <class C>
struct UnsignedOf;
template <>
struct UnsignedOf<int32_t> {
  using type = uint32_t;
};
template <>
struct UnsignedOf<int64_t> {
  using type = uint64_t;
};

// Integer arithmetic wraps, so it is computed on unsigned integers, for which C++ defines wrapping.
template <class C>
NEEDLE_HD static inline C wrap_add(C a, C b) {
  using U = typename UnsignedOf<C>::type;
  return static_cast<C>(static_cast<U>(a) + static_cast<U>(b));
}
template <class C>
NEEDLE_HD static inline C wrap_sub(C a, C b) {
  using U = typename UnsignedOf<C>::type;
  return static_cast<C>(static_cast<U>(a) - static_cast<U>(b));
}
template <class C>
NEEDLE_HD static inline C wrap_mul(C a, C b) {
  using U = typename UnsignedOf<C>::type;
  return static_cast<C>(static_cast<U>(a) * static_cast<U>(b));
}

template <class To, class From>
NEEDLE_HD static inline To convert(From x) {
  if constexpr (Kind<To>::boolean) {
    return x != From(0);
  } else if constexpr (Kind<From>::floating && !Kind<To>::floating) {
    // NaN and values out of range give the lowest integer, as on x86 (and in NumPy on x86).
    constexpr From limit = sizeof(To) == 4 ? From(2147483648.0) : From(9223372036854775808.0);
    constexpr To lowest = sizeof(To) == 4 ? To(INT32_MIN) : To(INT64_MIN);
    return x >= -limit && x < limit ? static_cast<To>(x) : lowest;
  } else {
    return static_cast<To>(x);
  }
}

// x truncated to float, with the last bit set if the result is inexact ("round to odd"; Boldo and
// Melquiond, "Emulation of a FMA and correctly rounded sums", 2008). The result and x lie on the
// same side of every half-precision number and of every midpoint of two, so rounding the result to
// half precision rounds x once.
NEEDLE_HD static inline float to_odd(double x) {
  const float nearest = static_cast<float>(x);
  const double back = nearest;
  uint32_t u = bits_of(nearest);
  u -= (x < 0 ? back < x : back > x) ? 1u : 0u;
  u |= back < x || back > x ? 1u : 0u;
  return float_of(u);
}
NEEDLE_HD static inline float to_odd(int32_t x) { return to_odd(static_cast<double>(x)); }
NEEDLE_HD static inline float to_odd(int64_t x) {
  const uint64_t u = x < 0 ? 0u - static_cast<uint64_t>(x) : static_cast<uint64_t>(x);
  // The same for the bits that a double cannot hold.
  const uint64_t kept = (u & ~uint64_t{0x7ff}) | ((u & 0x7ffu) != 0 ? 0x800u : 0u);
  const double magnitude = static_cast<double>(u >> 53 != 0 ? kept : u);
  return to_odd(x < 0 ? -magnitude : magnitude);
}

// x in the type that Io<To>::store takes, so that x is rounded once.
template <class To, class From>
NEEDLE_HD static inline typename Io<To>::C for_store(From x) {
  if constexpr (IsHalf<To>::value &&
                (sizeof(From) == 8 || (sizeof(From) == 4 && !Kind<From>::floating)))
    return to_odd(x);
  else
    return convert<typename Io<To>::C>(x);
}

}  // namespace NEEDLE_ISA
}  // namespace needle
