// Storage and compute types of the elements. Everything in cpu/isa is compiled once per instruction
// set inside its own namespace and uses no library templates: a weak symbol shared between the
// variants could carry AVX-512 code into the baseline.
#pragma once

#include <stdint.h>

#include "cpu/kernel_table.h"

namespace needle {
namespace NEEDLE_ISA {

struct Bool {
  uint8_t raw;
};

template <class S>
struct Io {
  using C = S;
  static inline C load(S v) { return v; }
  static inline S store(C v) { return v; }
};

template <>
struct Io<Bool> {
  using C = bool;
  static inline bool load(Bool v) { return v.raw != 0; }  // foreign memory may hold other values
  static inline Bool store(bool v) { return Bool{static_cast<uint8_t>(v)}; }
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

// Integer arithmetic wraps: done unsigned, where C++ defines it.
template <class C>
static inline C wrap_add(C a, C b) {
  using U = typename UnsignedOf<C>::type;
  return static_cast<C>(static_cast<U>(a) + static_cast<U>(b));
}
template <class C>
static inline C wrap_sub(C a, C b) {
  using U = typename UnsignedOf<C>::type;
  return static_cast<C>(static_cast<U>(a) - static_cast<U>(b));
}
template <class C>
static inline C wrap_mul(C a, C b) {
  using U = typename UnsignedOf<C>::type;
  return static_cast<C>(static_cast<U>(a) * static_cast<U>(b));
}

template <class To, class From>
static inline To convert(From x) {
  if constexpr (Kind<To>::boolean) {
    return x != From(0);
  } else if constexpr (Kind<From>::floating && !Kind<To>::floating) {
    // Out of range and NaN give the lowest integer, as x86 (and NumPy on it) does.
    constexpr From limit = sizeof(To) == 4 ? From(2147483648.0) : From(9223372036854775808.0);
    constexpr To lowest = sizeof(To) == 4 ? To(INT32_MIN) : To(INT64_MIN);
    return x >= -limit && x < limit ? static_cast<To>(x) : lowest;
  } else {
    return static_cast<To>(x);
  }
}

}  // namespace NEEDLE_ISA
}  // namespace needle
