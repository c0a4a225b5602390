// TVM's runtime library, and the code of an artifact.
#pragma once

#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <string>

#include "capi/files.h"

namespace needle::capi {

// Loads the code of an artifact from a private copy of its checked bytes, and gives it needle's
// threads. `path` names the artifact in errors. Raises a Failure.
tvm::ffi::Module load_code(const Bytes& library, const std::string& path);

}  // namespace needle::capi
