// The DLPack structures (version 1.3 and the older, unversioned form), as the specification at
// dmlc.github.io/dlpack defines them. Their layouts are an ABI shared with other libraries.
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

// The functions that a Python class offers to other libraries' C code. They are in a capsule named
// "dlpack_exchange_api", the class's attribute __dlpack_c_exchange_api__. They return 0, or
// -1 with a Python exception set; none of them synchronises streams.
struct ExchangeTable {
  Version version;
  const void* previous;  // a table of an older major version
  int (*allocate)(Tensor* like, ManagedVersioned** out, void* context,
                  void (*fail)(void* context, const char* kind, const char* message));
  int (*from_object)(void* object, ManagedVersioned** out);
  int (*to_object)(ManagedVersioned* tensor, void** out);  // takes the tensor over
  // Lends memory, shape and strides until the caller runs other Python code.
  int (*view_object)(void* object, Tensor* out);
  int (*current_stream)(int32_t device_type, int32_t device, void** out);
};

constexpr const char* kExchange = "dlpack_exchange_api";
constexpr int32_t kCpu = 1, kCuda = 2, kCudaHost = 3, kCudaManaged = 13;
constexpr uint64_t kReadOnly = 1;

}  // namespace dlpack
}  // namespace needle
