// Releases Python's global interpreter lock.
#pragma once

#include <Python.h>
#include <unistd.h>

namespace needle {

// Whether the interpreter is shutting down. It then ends threads that ask for its lock.
inline bool finalizing() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing();
#else
  return _Py_IsFinalizing();
#endif
}

// Lets other Python threads run during its lifetime. Unlike pybind11's version it survives the
// interpreter's shutdown: Python then ends returning threads by unwinding, which must not reach a
// noexcept destructor, so this destructor waits for the end of the process.
class MaybeReleaseGil {
 public:
  explicit MaybeReleaseGil(bool release) : state_(release ? PyEval_SaveThread() : nullptr) {}
  ~MaybeReleaseGil() noexcept(false) {
    if (state_ == nullptr) return;
    while (finalizing()) ::pause();  // a daemon thread, and the process is about to end
    PyEval_RestoreThread(state_);
  }
  MaybeReleaseGil(const MaybeReleaseGil&) = delete;
  MaybeReleaseGil& operator=(const MaybeReleaseGil&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace needle
