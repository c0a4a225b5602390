// The errors of the C API: thrown inside the library, turned into a status at its boundary.
#pragma once

#include <stdexcept>
#include <string>

#include "needle_runtime.h"

namespace needle::capi {

struct Failure : std::runtime_error {
  Failure(needle_status code, const std::string& reason)
      : std::runtime_error(reason), status(code) {}
  needle_status status;
};

inline std::string quote(const std::string& name) { return "'" + name + "'"; }

}  // namespace needle::capi
