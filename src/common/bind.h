// Code shared by the Python modules of all devices.
#pragma once

#include <pybind11/pybind11.h>

#include "common/view.h"
#include "python/gil.h"

namespace needle {

// A kernel over at least this many elements releases Python's interpreter lock, so other Python
// threads can run. For fewer elements, releasing the lock costs more than the work itself.
constexpr int64_t kReleaseFrom = 1 << 15;

inline bool large(int64_t a, int64_t b = 0) { return a >= kReleaseFrom || b >= kReleaseFrom; }

// The dtype names as interned Python strings; `bind` fills the table.
extern PyObject* g_dtype_names[kDTypes];
pybind11::tuple tuple_of(const Dims& d);

// Copies an object that has Python's buffer interface to the device `on`. Throws TypeError for
// element types that needle does not store.
View from_numpy(pybind11::handle source, int on);
// Copies a view to a new NumPy array.
pybind11::object to_numpy(const View& v);

// Adds the class View and the functions over views to a module.
void bind(pybind11::module_& m);
// Returns `index`. Throws std::invalid_argument if there is no such device.
int checked_device(int index);

}  // namespace needle
