// Safetensors files: named arrays.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "capi/files.h"
#include "needle_runtime.h"

namespace needle::capi {

struct NamedArray {
  std::string name;
  needle_dtype dtype;
  std::vector<int64_t> shape;
  const char* data;
  size_t bytes;
};

// Returns the arrays of a file; they point into `bytes`. Throws std::invalid_argument for bytes in
// another format.
std::vector<NamedArray> read_safetensors(const Bytes& bytes);

Bytes write_safetensors(const std::vector<NamedArray>& arrays);

// Computes the bytes of an array. Returns false if they exceed 63 bits or an extent is negative.
bool byte_size(needle_dtype dtype, const std::vector<int64_t>& shape, size_t* bytes);

}  // namespace needle::capi
