// tvm_ffi's objects, through its C interface: references, arguments, and tensors over foreign
// memory.
#pragma once

#include <tvm/ffi/c_api.h>

#include <cstdint>
#include <cstdlib>
#include <new>
#include <vector>

namespace needle {

// A reference to a tvm_ffi object.
class Handle {
 public:
  explicit Handle(TVMFFIObjectHandle handle) : handle_(handle) {}
  Handle(Handle&& other) noexcept : handle_(other.release()) {}
  Handle& operator=(Handle&&) = delete;
  ~Handle() {
    if (handle_ != nullptr) TVMFFIObjectDecRef(handle_);
  }
  const DLTensor* tensor() const { return TVMFFITensorGetDLTensorPtr(handle_); }
  TVMFFIObjectHandle get() const { return handle_; }
  TVMFFIObjectHandle release() {
    TVMFFIObjectHandle handle = handle_;
    handle_ = nullptr;
    return handle;
  }

 private:
  TVMFFIObjectHandle handle_;
};

inline TVMFFIAny tensor_argument(void* tensor) {
  TVMFFIAny argument{};
  argument.type_index = kTVMFFITensor;
  argument.v_obj = static_cast<TVMFFIObject*>(tensor);
  return argument;
}

// A tvm_ffi tensor over the caller's memory, created once and pointed at new memory for each call.
// TVM's C interface cannot create one, so this code does, with the layout that it defines.
struct Window {
  TVMFFIObject header;
  DLTensor tensor;
  int64_t extents[1];  // the shape, then the strides
};

inline void free_window(void* self, int flags) {
  if (flags & kTVMFFIObjectDeleterFlagBitMaskWeak) std::free(self);
}

inline Window* new_window(const std::vector<int64_t>& shape, DLDataType dtype) {
  const size_t n = shape.size();
  void* memory = std::calloc(1, sizeof(Window) + 2 * n * sizeof(int64_t));
  if (memory == nullptr) throw std::bad_alloc();
  auto* window = static_cast<Window*>(memory);
  // One strong reference, which is ours, and one weak reference for all strong ones.
  window->header.combined_ref_count = (uint64_t{1} << 32) | 1;
  window->header.type_index = kTVMFFITensor;
  window->header.deleter = free_window;
  window->tensor.device = {kDLCPU, 0};
  window->tensor.ndim = static_cast<int32_t>(n);
  window->tensor.dtype = dtype;
  window->tensor.shape = window->extents;
  window->tensor.strides = window->extents + n;
  int64_t step = 1;
  for (size_t i = n; i-- > 0;) {
    window->extents[i] = shape[i];
    window->extents[n + i] = step;
    step *= shape[i];
  }
  return window;
}

// Whether the caller's own reference to a window is the only one left.
inline bool unshared(const Window* window) {
  const uint64_t count = __atomic_load_n(&window->header.combined_ref_count, __ATOMIC_ACQUIRE);
  return (count & 0xffffffff) == 1;
}

}  // namespace needle
