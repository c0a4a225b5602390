// What the Python modules of all devices have in common.
#pragma once

#include <pybind11/pybind11.h>

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

// Adds the class View and the functions over views to a module.
void bind(pybind11::module_& m);
// The index itself; std::invalid_argument where there is no such device.
int checked_device(int index);

}  // namespace needle
