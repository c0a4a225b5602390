// Code shared by the Python modules of all devices.
#pragma once

#include <pybind11/pybind11.h>

#include "common/view.h"
#include "python/gil.h"

namespace needle {

// A kernel with at least this many elements lets other Python threads run; with fewer, releasing
// the interpreter costs more than the work.
constexpr int64_t kReleaseFrom = 1 << 15;

inline bool large(int64_t a, int64_t b = 0) { return a >= kReleaseFrom || b >= kReleaseFrom; }

// The dtype names as interned Python strings, filled by bind.
extern PyObject* g_dtype_names[kDTypes];
pybind11::tuple tuple_of(const Dims& d);

// Copies an object with Python's buffer interface to a device. Throws TypeError for element types
// that needle does not store.
View from_numpy(pybind11::handle source, int on);
// Makes a new NumPy array.
pybind11::object to_numpy(const View& v);

// Adds the class View and the functions over views to a module.
void bind(pybind11::module_& m);
// Returns the index. Throws std::invalid_argument if there is no such device.
int checked_device(int index);

}  // namespace needle
