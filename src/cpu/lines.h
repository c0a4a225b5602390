// Code shared by scans and sorts: an array as lines along one axis, and a choice by dtype.
#pragma once

#include <stdexcept>
#include <string>
#include <type_traits>

#include "common/view.h"
#include "threads/thread_pool.h"

namespace needle {

constexpr int64_t kLineGrain = 16384;  // elements per task

// A compact array as (outer, n, inner), where n is the extent of `axis`.
struct Lines {
  int64_t outer = 1, n, inner = 1;

  Lines(const View& x, int axis, const char* what) {
    if (axis < 0 || axis >= x.ndim())
      throw std::invalid_argument(std::string(what) + ": axis " + std::to_string(axis) +
                                  " is out of range for shape " + x.shape().str());
    for (int i = 0; i < axis; ++i) outer *= x.shape()[i];
    n = x.shape()[axis];
    for (int i = axis + 1; i < x.ndim(); ++i) inner *= x.shape()[i];
  }
};

// Calls fn(T()) for the C++ type of a dtype that is computed as it is stored.
template <class F>
void with_number(DType t, const char* what, F&& fn) {
  switch (t) {
    case DType::float32:
      return fn(float());
    case DType::float64:
      return fn(double());
    case DType::int32:
      return fn(int32_t());
    case DType::int64:
      return fn(int64_t());
    case DType::boolean:
      return fn(uint8_t());
    default:
      throw TypeError(std::string(what) + ": no kernel for " + name(t));
  }
}

}  // namespace needle
