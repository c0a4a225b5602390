// Devices, streams and the order of work. All work on a device goes through a `Work`.
//
// A buffer knows the stream of the last work on it. Work on another stream first makes that stream
// wait for the earlier work, even if both only read, so results do not depend on a user's choice of
// streams. The default is the legacy default stream, which PyTorch uses as well.
#pragma once

#include <cuda_runtime.h>

#include <initializer_list>
#include <mutex>
#include <string>
#include <utility>

#include "common/view.h"

namespace needle {
namespace cuda {

constexpr int kHost = -1;  // the device of buffers that wrap host memory

// An error of the runtime or of cuBLAS; becomes Python's RuntimeError.
struct CudaError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Throws CudaError with the failed action and the runtime's message, which also says if the context
// does not survive the error.
void check(cudaError_t status, const std::string& doing);

// The number of devices; 0 without a driver.
int device_count();
int multiprocessors(int device);

// Makes a device the calling thread's current one during its lifetime.
class OnDevice {
 public:
  explicit OnDevice(int device);
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_;
};

// Streams are never destroyed: the stream of a dead Python object serves the next one.
struct Stream {
  int device;
  cudaStream_t handle;
};
Stream* default_stream(int device);
Stream* take_stream(int device);
void give_stream(Stream* stream);
// The calling thread's stream.
Stream* current_stream(int device);
// Sets the stream; null means the default. Returns the previous stream.
Stream* set_current_stream(int device, Stream* stream);

// Returns another library's stream, by its DLPack number.
cudaStream_t foreign_stream(int64_t number);

// Orders future work on `waiting` after the work so far on `other`. A default stream's handle
// means the default stream of the current device, so each stream comes with its device.
void wait_for(const Stream& waiting, const Stream& other);

void synchronize(int device);

// A recorded event; events are reused.
class Mark {
 public:
  Mark() = default;
  Mark(int device, cudaStream_t stream);
  ~Mark() { give_back(); }
  Mark(Mark&& other) noexcept { *this = std::move(other); }
  Mark& operator=(Mark&& other) noexcept {
    std::swap(event_, other.event_);
    std::swap(device_, other.device_);
    return *this;
  }
  bool reached() const;  // true if there is no event
  void wait() const;     // makes the host wait; returns at once without an event
  cudaEvent_t event() const { return event_; }

 private:
  void give_back() noexcept;
  cudaEvent_t event_ = nullptr;
  int device_ = 0;
};

struct Grid {
  unsigned x = 1, y = 1, z = 1;
};

// One piece of work on the current stream of its views' device, ordered with other work on these
// views. Work of other threads waits until it has been submitted.
class Work {
 public:
  // `touched` may contain nulls and host views, which are ignored.
  Work(const char* what, std::initializer_list<const View*> touched);

  cudaStream_t stream() const { return stream_->handle; }
  int device() const { return stream_->device; }
  // Throws CudaError that names the work and the arrays.
  void check(cudaError_t status) const {
    if (status != cudaSuccess) fail(status);
  }

  template <class... P, class... A>
  void launch(void (*kernel)(P...), Grid grid, unsigned threads, A... arguments) const {
    submit(kernel, grid, threads, static_cast<P>(arguments)...);
  }

 private:
  template <class... P>
  void submit(void (*kernel)(P...), Grid grid, unsigned threads, P... arguments) const {
    void* pointers[] = {const_cast<void*>(static_cast<const void*>(std::addressof(arguments)))...};
    check(cudaLaunchKernel(kernel, dim3(grid.x, grid.y, grid.z), dim3(threads), pointers, 0,
                           stream()));
  }
  void order(const Buffer& buffer);
  [[noreturn]] void fail(cudaError_t status) const;

  static constexpr int kMost = 10;
  const char* what_;
  const View* touched_[kMost];
  int count_ = 0;
  Stream* stream_;
  OnDevice on_;
  std::unique_lock<std::recursive_mutex> lock_;
};

// Device memory for the duration of work on the current stream.
class Scratch {
 public:
  // Throws OutOfMemory that names `what`.
  Scratch(const char* what, int device, std::initializer_list<int64_t> factors);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  char* get() const { return data_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  char* data_ = nullptr;
  int64_t bytes_;
  int device_;
  void* stream_ = nullptr;
};

// The number of blocks of `per` elements in a grid for n elements; kernels use grid-stride loops.
Grid grid_for(int device, int64_t n, int64_t per);

}  // namespace cuda
}  // namespace needle
