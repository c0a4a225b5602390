// SHA-256 (FIPS 180-4).
#pragma once

#include <cstddef>
#include <string>

namespace needle::capi {

// The digest of bytes, as 64 hexadecimal digits.
std::string sha256(const void* data, size_t size);

}  // namespace needle::capi
