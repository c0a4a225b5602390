// The DLPack structures (version 1.0 and the older, unversioned form) by the published
// specification, dmlc.github.io/dlpack. Their layouts are an ABI shared with other libraries.
#pragma once

#include <cstdint>

namespace needle {
namespace dlpack {

struct Version {
  uint32_t major, minor;
};

struct DeviceRef {
  int32_t type, id;
};

struct DataType {
  uint8_t code, bits;
  uint16_t lanes;
};

struct Tensor {
  void* data;
  DeviceRef device;
  int32_t ndim;
  DataType dtype;
  int64_t* shape;
  int64_t* strides;  // in elements; null means row-major
  uint64_t byte_offset;
};

struct Managed {
  Tensor tensor;
  void* context;
  void (*deleter)(Managed*);
};

struct ManagedVersioned {
  Version version;
  void* context;
  void (*deleter)(ManagedVersioned*);
  uint64_t flags;
  Tensor tensor;
};

constexpr int32_t kCpu = 1, kCuda = 2, kCudaHost = 3, kCudaManaged = 13;
constexpr uint64_t kReadOnly = 1;

}  // namespace dlpack
}  // namespace needle
