// Tensors of tvm_ffi over memory of this library and of its callers.
#pragma once

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "capi/dtypes.h"
#include "capi/failure.h"

namespace needle::capi {

namespace ffi = tvm::ffi;

// Compiled code crashes if memory is less aligned, unless it was built for inputs at any address.
constexpr size_t kAlignment = 64;  // bytes

struct Aligned {
  void AllocData(DLTensor* tensor) {
    const size_t bytes = ffi::GetDataSize(*tensor);
    tensor->data = std::aligned_alloc(kAlignment, (bytes + kAlignment) / kAlignment * kAlignment);
    if (tensor->data == nullptr) throw std::bad_alloc();
  }
  void FreeData(DLTensor* tensor) { std::free(tensor->data); }
};

struct Foreign {  // memory of the caller, set for each call
  void AllocData(DLTensor* tensor) { tensor->data = nullptr; }
  void FreeData(DLTensor*) {}
};

template <class Memory>
ffi::Tensor new_tensor(needle_dtype dtype, const std::vector<int64_t>& shape) {
  const Dtype& row = kDtypes[dtype];
  return ffi::Tensor::FromNDAlloc(Memory(), ffi::ShapeView(shape.data(), shape.size()),
                                  DLDataType{row.code, static_cast<uint8_t>(8 * row.bytes), 1},
                                  DLDevice{kDLCPU, 0});
}

inline void point(const ffi::Tensor& window, const void* data) {
  const_cast<DLTensor*>(window.GetDLTensorPtr())->data = const_cast<void*>(data);
}

inline const char* data_of(const ffi::Tensor& tensor) {
  const DLTensor* array = tensor.GetDLTensorPtr();
  return static_cast<const char*>(array->data) + array->byte_offset;
}

inline void copy_bytes(void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memmove(to, from, bytes);
}

inline bool is_aligned(const void* data, size_t alignment) {
  return reinterpret_cast<uintptr_t>(data) % alignment == 0;
}

inline bool overlap(const void* a, size_t bytes_a, const void* b, size_t bytes_b) {
  const auto x = reinterpret_cast<uintptr_t>(a), y = reinterpret_cast<uintptr_t>(b);
  return bytes_a > 0 && bytes_b > 0 && x < y + bytes_b && y < x + bytes_a;
}

// Calls a function of the code; its errors become Failures.
inline ffi::Any called(const ffi::Function& function, const std::vector<ffi::AnyView>& arguments) {
  ffi::Any result;
  try {
    function.CallPacked(arguments.data(), static_cast<int32_t>(arguments.size()), &result);
  } catch (const ffi::Error& error) {
    std::string text = error.message();
    throw Failure(NEEDLE_ERROR_CODE,
                  "the compiled code failed: " + text.substr(0, text.find('\n')));
  }
  return result;
}

inline std::vector<ffi::Tensor> tensors_of(const ffi::Any& result) {
  if (const auto one = result.as<ffi::Tensor>()) return {*one};
  std::vector<ffi::Tensor> tensors;
  if (const auto several = result.as<ffi::Array<ffi::Any>>())
    for (const ffi::Any& each : *several)
      if (const auto tensor = each.as<ffi::Tensor>()) tensors.push_back(*tensor);
  return tensors;
}

}  // namespace needle::capi
