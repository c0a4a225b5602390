// Exchange between the threads of a warp: each shows the others a value, and none continues until
// all have read what they want.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "cuda_runtime.h"

namespace needle {
namespace emulated {

// Ends the process, like touching a device's memory from the host: what a GPU would do then is
// undefined.
[[noreturn]] inline void refuse(const char* what) {
  std::fprintf(stderr, "emulated GPU: %s\n", what);
  std::abort();
}

constexpr unsigned kWarp = 32, kWarps = 32;  // threads of a warp, warps of a block at most

inline unsigned thread_number() {
  return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
}

// The values that the threads of this warp show; `done` once they have been read.
class Shown {
 public:
  explicit Shown(const void* own) : of_(of_warp()[thread_number() / kWarp]) {
    of_[thread_number() % kWarp] = own;
    __syncwarp();
  }
  template <class T>
  const T* of(unsigned lane) const {
    return static_cast<const T*>(of_[lane]);
  }
  // Whether all threads show the same value.
  bool agree() const {
    for (unsigned lane = 1; lane < kWarp; ++lane)
      if (of_[lane] != of_[0]) return false;
    return true;
  }
  void done() const { __syncwarp(); }

 private:
  using Lanes = const void* [kWarp];
  static Lanes* of_warp() {
    static Lanes shown[kWarps];
    return shown;
  }
  const void** of_;
};

}  // namespace emulated
}  // namespace needle
