// tvm_ffi's objects in Python, without its Python package, whose import takes longer than loading a
// small model.
#pragma once

#include <pybind11/pybind11.h>
#include <tvm/ffi/error.h>

namespace needle {

// Sets the Python exception for a TVM error: of the class that its kind names, or RuntimeError.
void set_error(const TVMFFIByteArray& kind, const TVMFFIByteArray& message);

// Adds `Object`, `global_function` and `tensor` to a module.
void add_objects(pybind11::module_& m);

}  // namespace needle
