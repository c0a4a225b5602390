#include "capi/indices.h"

#include <cstring>
#include <iterator>
#include <type_traits>

#include "capi/failure.h"

namespace needle::capi {

namespace {

template <class T>
bool within(const void* data, size_t bytes, int64_t low, int64_t high, std::string* wrong) {
  for (size_t i = 0; i < bytes / sizeof(T); ++i) {
    T x;  // the caller's memory may have any address
    std::memcpy(&x, static_cast<const char*>(data) + i * sizeof(T), sizeof(T));
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

// By the numbers of needle_dtype; bools are bytes.
constexpr decltype(&within<int8_t>) kChecks[] = {
    within<uint8_t>, within<int8_t>,   within<int16_t>,  within<int32_t>,  within<int64_t>,
    within<uint8_t>, within<uint16_t>, within<uint32_t>, within<uint64_t>, nullptr,
    nullptr,         within<float>,    within<double>,
};
static_assert(std::size(kChecks) == NEEDLE_FLOAT64 + 1);

}  // namespace

bool indices_within(needle_dtype dtype, const void* data, size_t bytes, int64_t low, int64_t high,
                    std::string* wrong) {
  if (kChecks[dtype] == nullptr)
    throw Failure(NEEDLE_ERROR_INPUT, std::string("indices of dtype ") + needle_dtype_name(dtype) +
                                          " are not supported by the C runtime");
  return kChecks[dtype](data, bytes, low, high, wrong);
}

}  // namespace needle::capi
