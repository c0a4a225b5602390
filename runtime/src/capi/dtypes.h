// The dtypes of arrays: one row for each needle_dtype, in the order of its numbers.
#pragma once

#include <dlpack/dlpack.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>

#include "needle_runtime.h"

namespace needle::capi {

struct Dtype {
  const char* name;         // NumPy's
  const char* safetensors;  // in the header of a safetensors file
  uint8_t code;             // DLPack's
  uint8_t bytes;
};

constexpr Dtype kDtypes[] = {
    {"bool", "BOOL", kDLBool, 1},       {"int8", "I8", kDLInt, 1},
    {"int16", "I16", kDLInt, 2},        {"int32", "I32", kDLInt, 4},
    {"int64", "I64", kDLInt, 8},        {"uint8", "U8", kDLUInt, 1},
    {"uint16", "U16", kDLUInt, 2},      {"uint32", "U32", kDLUInt, 4},
    {"uint64", "U64", kDLUInt, 8},      {"float16", "F16", kDLFloat, 2},
    {"bfloat16", "BF16", kDLBfloat, 2}, {"float32", "F32", kDLFloat, 4},
    {"float64", "F64", kDLFloat, 8},
};
static_assert(std::size(kDtypes) == NEEDLE_FLOAT64 + 1);

// Returns the dtype whose field `name` in kDtypes is `text`, if there is one.
inline std::optional<needle_dtype> find_dtype(const char* Dtype::* name, const std::string& text) {
  for (size_t i = 0; i < std::size(kDtypes); ++i)
    if (text == kDtypes[i].*name) return static_cast<needle_dtype>(i);
  return std::nullopt;
}

}  // namespace needle::capi
