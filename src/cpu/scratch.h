// Aligned memory for the time of one call.
#pragma once

#include <initializer_list>
#include <memory>

#include "common/blocks.h"
#include "common/view.h"

namespace needle {
namespace cpu {

struct GiveBack {
  int64_t bytes = 0;
  void operator()(char* p) const { release_block(p, bytes); }
};
using Scratch = std::unique_ptr<char, GiveBack>;

inline int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }

// Extents of broadcast operands multiply beyond any memory: the largest integer then.
inline int64_t product(std::initializer_list<int64_t> factors) {
  int64_t out = 1;
  for (int64_t n : factors)
    if (__builtin_mul_overflow(out, n, &out)) return INT64_MAX;
  return out;
}

// As many bytes as the product of `factors`, uninitialised. Throws OutOfMemory with `complaint`.
inline Scratch scratch(std::initializer_list<int64_t> factors, const char* complaint) {
  const int64_t bytes = product(factors);
  try {
    return Scratch(acquire_block(bytes), GiveBack{bytes});
  } catch (const std::bad_alloc&) {
    throw OutOfMemory(complaint);
  }
}

}  // namespace cpu
}  // namespace needle
