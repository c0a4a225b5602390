// Checks of inputs that are used as indices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "needle_runtime.h"

namespace needle::capi {

// Whether all elements are in [low, high]; else `wrong` receives the first one that is not.
bool indices_within(needle_dtype dtype, const void* data, size_t bytes, int64_t low, int64_t high,
                    std::string* wrong);

}  // namespace needle::capi
