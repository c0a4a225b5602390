// Reads an artifact's manifest, and makes every check that need not run the artifact's code.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "capi/files.h"
#include "capi/sizes.h"
#include "needle_runtime.h"

namespace needle::capi {

struct ArraySpec {
  std::string name;
  Shape shape;
  needle_dtype dtype;
  std::optional<std::pair<Extent, Extent>> range;  // (least, largest) of an index

  std::vector<int64_t> described;  // the shape, with -1 for open sizes
};

// The function `main`. The last inputs and outputs are the state and its new values.
struct Function {
  std::vector<ArraySpec> inputs, outputs, params;
  size_t states = 0;
  std::vector<std::vector<std::string>> ties;               // names of one parameter
  std::map<std::string, std::optional<std::string>> fixed;  // constants, with their digests
  std::string transform;                                    // packs the weights; "" if none does
  bool any_address = false;
  std::vector<std::pair<size_t, size_t>> in_place;  // (output, input)
  Sizes sizes;
};

struct Manifest {
  Function main;
  std::string kind, mcpu;
  std::vector<std::string> features;
  int threads = 0;  // the number that the code was scheduled for; 0 if unknown
};

// Reads the manifest of the artifact in a folder and checks the signature (if `public_key` is not
// null), the digest, the structure, the versions, and the SHA-256 and size of every other file;
// `library` and `params` receive the files lib.so and params.safetensors. Raises a Failure.
Manifest read_manifest(const Folder& folder, const char* public_key, Bytes* library,
                       std::optional<Bytes>* params);

// A description for errors: float32(4, 16).
std::string describe(needle_dtype dtype, const std::vector<int64_t>& shape);
std::string describe(const ArraySpec& spec);

}  // namespace needle::capi
