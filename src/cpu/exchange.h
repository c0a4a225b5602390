// DLPack's C exchange tables for needle's classes: other libraries' C code reads a Tensor without
// Python, and makes one.
#pragma once

#include <pybind11/pybind11.h>

namespace needle {

// A capsule with the table of the class NDArray, with slots `device` and `view`. Arrays made
// through it are on `device`. A process has one class of each kind: std::invalid_argument for
// another.
pybind11::capsule array_exchange(pybind11::type cls, pybind11::object device);
// The same for Tensor, with slots `_data` (an NDArray) and `_node`, and a method
// `realize_cached_data` that raises if the thread's `state.trace` forbids to read the value.
// std::invalid_argument before the call of array_exchange.
pybind11::capsule tensor_exchange(pybind11::type cls, pybind11::object state);

}  // namespace needle
