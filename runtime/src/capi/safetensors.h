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

// The arrays of a file, over its bytes. Throws std::invalid_argument for bytes in another format.
std::vector<NamedArray> read_safetensors(const Bytes& bytes);

Bytes write_safetensors(const std::vector<NamedArray>& arrays);

// The bytes of an array, if they fit into 63 bits and no extent is negative.
bool byte_size(needle_dtype dtype, const std::vector<int64_t>& shape, size_t* bytes);

}  // namespace needle::capi
