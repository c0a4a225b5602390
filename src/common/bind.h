// What the Python modules of all devices have in common.
#pragma once

#include <pybind11/pybind11.h>

#include "common/view.h"

namespace needle {

// Lets other Python threads run for as long as it lives. Unlike pybind11's it survives an
// interpreter that is shutting down: Python ends threads that come back then by unwinding them,
// which must not meet a noexcept destructor, and is better not begun.
class MaybeReleaseGil {
 public:
  explicit MaybeReleaseGil(bool release) : state_(release ? PyEval_SaveThread() : nullptr) {}
  ~MaybeReleaseGil() noexcept(false) {
    if (state_ == nullptr) return;
    while (finalizing()) wait_for_the_end();  // a daemon thread: the process is about to end
    PyEval_RestoreThread(state_);
  }
  MaybeReleaseGil(const MaybeReleaseGil&) = delete;
  MaybeReleaseGil& operator=(const MaybeReleaseGil&) = delete;

 private:
  static bool finalizing() {
#if PY_VERSION_HEX >= 0x030D0000
    return Py_IsFinalizing();
#else
    return _Py_IsFinalizing();
#endif
  }
  static void wait_for_the_end();
  PyThreadState* state_;
};

// Elements from which on a kernel lets other Python threads run; below, handing the interpreter
// over costs more than the work.
constexpr int64_t kReleaseFrom = 1 << 15;

inline bool large(int64_t a, int64_t b = 0) { return a >= kReleaseFrom || b >= kReleaseFrom; }

// The names of dtypes as Python's interned strings, filled by bind.
extern PyObject* g_dtype_names[kDTypes];
pybind11::tuple tuple_of(const Dims& d);

// A copy on a device of what has Python's buffer interface; TypeError for other element types.
View from_numpy(pybind11::handle source, int on);
// A new NumPy array.
pybind11::object to_numpy(const View& v);

// Adds the class View and the functions over views to a module.
void bind(pybind11::module_& m);
// The index itself; std::invalid_argument where there is no such device.
int checked_device(int index);

}  // namespace needle
