// Arithmetic on sizes.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace needle {

inline int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }

// Saturates, because the extents of broadcast operands may multiply beyond any memory.
inline int64_t product(std::initializer_list<int64_t> factors) {
  int64_t out = 1;
  for (int64_t n : factors)
    if (__builtin_mul_overflow(out, n, &out)) return INT64_MAX;
  return out;
}

}  // namespace needle
