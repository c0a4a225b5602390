// float16, bfloat16 and tf32 as in CUDA's headers: values that convert to and from float
// implicitly, with each operation rounded to the type. Halves are rounded by needle's own code
// (common/scalar.h), whose tests compare bits with NumPy's.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#define NEEDLE_ISA emulated
#include "scalar.h"

namespace needle {
namespace emulated {

// A half with the bits of Storage: Float16 or Bfloat16. A declaration leaves it uninitialised, as
// in CUDA, so that it can be in shared memory.
template <class Storage>
struct Half {
  Storage bits;

  Half() = default;
  template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
  Half(T x) : bits(rounded(x)) {}
  operator float() const { return Io<Storage>::load(bits); }

  Half& operator+=(Half b) { return *this = *this + b; }
  Half& operator-=(Half b) { return *this = *this - b; }
  Half& operator*=(Half b) { return *this = *this * b; }
  Half& operator/=(Half b) { return *this = *this / b; }
  Half operator-() const { return Half(Storage{static_cast<uint16_t>(bits.raw ^ 0x8000u)}); }
  friend Half operator+(Half a, Half b) { return Half(float(a) + float(b)); }
  friend Half operator-(Half a, Half b) { return Half(float(a) - float(b)); }
  friend Half operator*(Half a, Half b) { return Half(float(a) * float(b)); }
  friend Half operator/(Half a, Half b) { return Half(float(a) / float(b)); }
  friend bool operator==(Half a, Half b) { return float(a) == float(b); }
  friend bool operator!=(Half a, Half b) { return float(a) != float(b); }
  friend bool operator<(Half a, Half b) { return float(a) < float(b); }
  friend bool operator>(Half a, Half b) { return float(a) > float(b); }
  friend bool operator<=(Half a, Half b) { return float(a) <= float(b); }
  friend bool operator>=(Half a, Half b) { return float(a) >= float(b); }
  friend Half __hadd(Half a, Half b) { return a + b; }
  friend Half __hsub(Half a, Half b) { return a - b; }
  friend Half __hmul(Half a, Half b) { return a * b; }
  friend Half __hdiv(Half a, Half b) { return a / b; }
  // Rounded once, except sums that double cannot hold exactly; it can hold products of two halves.
  friend Half __hfma(Half a, Half b, Half c) { return Half(double(a) * double(b) + double(c)); }
  friend bool __hgt(Half a, Half b) { return a > b; }
  friend bool __hlt(Half a, Half b) { return a < b; }
  friend bool __hisnan(Half a) { return std::isnan(float(a)); }
  friend Half __habs(Half a) { return Half(std::fabs(float(a))); }
  friend Half __hneg(Half a) { return -a; }
  friend Half hceil(Half a) { return Half(std::ceil(float(a))); }
  friend Half hfloor(Half a) { return Half(std::floor(float(a))); }
  friend Half htrunc(Half a) { return Half(std::trunc(float(a))); }
  friend Half hrint(Half a) { return Half(std::nearbyint(float(a))); }
  friend Half hexp(Half a) { return Half(std::exp(float(a))); }
  friend Half hlog(Half a) { return Half(std::log(float(a))); }
  friend Half hsqrt(Half a) { return Half(std::sqrt(float(a))); }
  friend Half hrsqrt(Half a) { return Half(1 / std::sqrt(float(a))); }
  friend Half htanh(Half a) { return Half(std::tanh(float(a))); }
  friend Half hsin(Half a) { return Half(std::sin(float(a))); }
  friend Half hcos(Half a) { return Half(std::cos(float(a))); }

 private:
  explicit Half(Storage s) : bits(s) {}
  template <class T>
  static Storage rounded(T x) {
    if constexpr (std::is_integral_v<T>) {
      using Wide = std::conditional_t<sizeof(T) < 4, int32_t, int64_t>;
      return Io<Storage>::store(for_store<Storage>(static_cast<Wide>(x)));
    } else {
      return Io<Storage>::store(for_store<Storage>(x));
    }
  }
};

// Two halves in 32 bits, the first in the lower bits.
template <class Storage>
struct alignas(4) Pair {
  Half<Storage> x, y;

  Pair() = default;
  Pair(Half<Storage> a, Half<Storage> b) : x(a), y(b) {}
  friend Pair operator+(Pair a, Pair b) { return {a.x + b.x, a.y + b.y}; }
  friend Pair operator-(Pair a, Pair b) { return {a.x - b.x, a.y - b.y}; }
  friend Pair operator*(Pair a, Pair b) { return {a.x * b.x, a.y * b.y}; }
  friend Pair operator/(Pair a, Pair b) { return {a.x / b.x, a.y / b.y}; }
};

// tf32 is a float; tensor cores ignore its lower 13 bits.
inline float read_as_tf32(float x) { return float_of(bits_of(x) & 0xffffe000u); }

// Rounds to the nearest tf32, halfway cases away from zero, like cvt.rna.tf32.f32.
inline float to_tf32(float x) {
  const uint32_t u = bits_of(x);
  return (u & 0x7f800000u) == 0x7f800000u ? x : float_of((u + 0x1000u) & 0xffffe000u);
}

}  // namespace emulated
}  // namespace needle
