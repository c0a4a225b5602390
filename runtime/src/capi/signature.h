// Ed25519 signatures (RFC 8032). libsodium checks them; it is loaded only for that.
#pragma once

#include <string>

#include "capi/files.h"

namespace needle::capi {

constexpr size_t kSignatureLength = 64;  // bytes

// Whether the owner of the public key in a PEM file made `signature` of `data`. Raises a Failure
// (SIGNATURE) if the file holds no such key, or without libsodium.
bool is_signed_by(const Bytes& data, const Bytes& signature, const std::string& public_key);

}  // namespace needle::capi
