// The errors of the C API: thrown inside the library, turned into a status at its boundary.
#pragma once

#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "needle_runtime.h"

namespace needle::capi {

struct Failure : std::runtime_error {
  Failure(needle_status code, const std::string& reason)
      : std::runtime_error(reason), status(code) {}
  needle_status status;
};

// Joins strings or numbers into one string.
template <class T>
std::string joined(const std::vector<T>& parts, const char* between = ", ") {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) text += between;
    if constexpr (std::is_arithmetic_v<T>)
      text += std::to_string(parts[i]);
    else
      text += parts[i];
  }
  return text;
}

inline std::string quote(const std::string& name) { return "'" + name + "'"; }

}  // namespace needle::capi
