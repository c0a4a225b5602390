#include "capi/indices.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <type_traits>

namespace needle::capi {

namespace {

// 16-bit floats as their bits; C++17 has no types for them.
struct Half {
  uint16_t bits;
};
struct Bfloat16 {
  uint16_t bits;
};

template <class T>
T widened(T x) {
  return x;
}

float widened(Half x) {
  const int exponent = x.bits >> 10 & 0x1f, fraction = x.bits & 0x3ff;
  const float size =
      exponent == 0x1f ? (fraction != 0 ? std::nanf("") : HUGE_VALF)
                       : std::ldexp(static_cast<float>(exponent > 0 ? fraction + 0x400 : fraction),
                                    std::max(exponent, 1) - 25);
  return x.bits >> 15 != 0 ? -size : size;
}

float widened(Bfloat16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof wide);
  return wide;
}

template <class Element>
bool within(const void* data, size_t bytes, int64_t low, int64_t high, std::string* wrong) {
  for (size_t i = 0; i < bytes / sizeof(Element); ++i) {
    Element element;  // the caller's memory may have any address
    std::memcpy(&element, static_cast<const char*>(data) + i * sizeof element, sizeof element);
    const auto x = widened(element);
    using T = std::remove_const_t<decltype(x)>;
    if constexpr (std::is_floating_point_v<T>) {
      // Floats are truncated towards zero when they become indices; a NaN is not an index.
      if (x > static_cast<T>(low - 1) && x < static_cast<T>(high + 1)) continue;
    } else if constexpr (std::is_unsigned_v<T>) {
      if (high >= 0 && x <= static_cast<uint64_t>(high) &&
          (low <= 0 || x >= static_cast<uint64_t>(low)))
        continue;
    } else {
      if (x >= low && x <= high) continue;
    }
    *wrong = std::to_string(x);
    return false;
  }
  return true;
}

// Indexed by needle_dtype; bools are bytes.
constexpr decltype(&within<int8_t>) kChecks[] = {
    within<uint8_t>,  within<int8_t>,   within<int16_t>,  within<int32_t>,  within<int64_t>,
    within<uint8_t>,  within<uint16_t>, within<uint32_t>, within<uint64_t>, within<Half>,
    within<Bfloat16>, within<float>,    within<double>,
};
static_assert(std::size(kChecks) == NEEDLE_FLOAT64 + 1);

}  // namespace

bool indices_within(needle_dtype dtype, const void* data, size_t bytes, int64_t low, int64_t high,
                    std::string* wrong) {
  return kChecks[dtype](data, bytes, low, high, wrong);
}

}  // namespace needle::capi
