// Aligned memory for the duration of one call.
#pragma once

#include <initializer_list>
#include <memory>

#include "common/blocks.h"
#include "common/integers.h"
#include "common/view.h"

namespace needle {
namespace device {

struct GiveBack {
  int64_t bytes = 0;
  void operator()(char* p) const { release_block(p, bytes, 0, nullptr); }
};
using Scratch = std::unique_ptr<char, GiveBack>;

// Uninitialised memory of product(`factors`) bytes. Throws OutOfMemory with `complaint`.
inline Scratch scratch(std::initializer_list<int64_t> factors, const char* complaint) {
  const int64_t bytes = product(factors);
  try {
    void* stream;
    return Scratch(acquire_block(bytes, 0, &stream), GiveBack{bytes});
  } catch (const std::bad_alloc&) {
    throw OutOfMemory(complaint);
  }
}

}  // namespace device
}  // namespace needle
