// DLPack's C exchange tables for needle's classes: other libraries' C code reads and makes Tensors
// without Python.
#pragma once

#include <pybind11/pybind11.h>

namespace needle {

// Returns a capsule with the table of the class NDArray, which has slots `device` and `view`.
// Arrays made through the table are on `device`. A process has one class of each kind. Throws
// std::invalid_argument for any other class.
pybind11::capsule array_exchange(pybind11::type cls, pybind11::object device);
// The same for Tensor, with slots `_data` (an NDArray) and `_node`, and a method
// `realize_cached_data` that raises if the thread's `state.trace` forbids reading the value. Throws
// std::invalid_argument if array_exchange was not called before.
pybind11::capsule tensor_exchange(pybind11::type cls, pybind11::object state);

}  // namespace needle
