// TVM's runtime for CUDA on a host without a GPU, for tests. Memory and threads are those of
// needle's emulated CUDA runtime. A library's machine code is the host's, compiled from the CUDA
// source that TVM generated. Everything above is real: the virtual machine, the host code that
// launches kernels, the contents of an artifact.
#include <dlfcn.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/runtime/device_api.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <unordered_map>
#include <vector>

#include "graphs.h"

namespace {

namespace ffi = tvm::ffi;
using tvm::Device;
using tvm::runtime::DeviceAPI;
using tvm::runtime::DeviceAttrKind;

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess)
    TVM_FFI_THROW(RuntimeError) << what << ": " << cudaGetErrorString(error);
}

class EmulatedDevice final : public DeviceAPI {
 public:
  void SetDevice(Device device) final { check(cudaSetDevice(device.device_id), "SetDevice"); }
  void GetAttr(Device, DeviceAttrKind kind, ffi::Any* rv) final {
    if (kind == tvm::runtime::kExist) *rv = 1;
  }
  void* AllocDataSpace(Device device, size_t bytes, size_t, DLDataType) final {
    SetDevice(device);
    void* memory = nullptr;  // as cudaMalloc leaves it for 0 bytes
    if (bytes > 0) check(cudaMalloc(&memory, bytes), "AllocDataSpace");
    return memory;
  }
  void FreeDataSpace(Device device, void* memory) final {
    SetDevice(device);
    if (memory != nullptr) check(cudaFree(memory), "FreeDataSpace");
  }
  void StreamSync(Device device, TVMStreamHandle stream) final {
    SetDevice(device);
    if (emulated::captured(static_cast<cudaStream_t>(stream)))
      TVM_FFI_THROW(RuntimeError) << "StreamSync: the stream is being captured";
    check(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)), "StreamSync");
  }

 protected:
  void CopyDataFromTo(const void* from, size_t from_offset, void* to, size_t to_offset,
                      size_t bytes, Device from_device, Device to_device, DLDataType,
                      TVMStreamHandle stream) final {
    const bool there = from_device.device_type == kDLCUDA, back = to_device.device_type == kDLCUDA;
    SetDevice(there ? from_device : to_device);
    const cudaMemcpyKind kind =
        there ? (back ? cudaMemcpyDeviceToDevice : cudaMemcpyDeviceToHost) : cudaMemcpyHostToDevice;
    check(cudaMemcpyAsync(static_cast<char*>(to) + to_offset,
                          static_cast<const char*>(from) + from_offset, bytes, kind,
                          static_cast<cudaStream_t>(stream)),
          "CopyDataFromTo");
  }
};

// Reads TVM's format of a CUDA module (src/backend/cuda/codegen): strings and lists are a 64-bit
// count followed by their items.
struct Reader {
  const char* at;
  const char* end;

  template <class T>
  T number() {
    T value;
    if (end - at < static_cast<ptrdiff_t>(sizeof value)) TVM_FFI_THROW(ValueError) << "cut off";
    std::memcpy(&value, at, sizeof value);
    at += sizeof value;
    return value;
  }
  std::string string() {
    const auto length = number<uint64_t>();
    if (static_cast<uint64_t>(end - at) < length) TVM_FFI_THROW(ValueError) << "cut off";
    std::string found(at, length);
    at += length;
    return found;
  }
};

struct Kernel {
  std::vector<DLDataType> arguments;
  std::vector<std::string> launch;
  void (*thread)(void*) = nullptr;
};

const char* const kDynamicShared = "tirx.use_dyn_shared_memory";
constexpr int64_t kMostShared = 232448;  // bytes, as in the GPU of emulated_gpu/__init__.py

// A dimension of the grid or the block, by its tag such as "blockIdx.x".
unsigned& dimension(const std::string& tag, dim3& grid, dim3& block) {
  dim3& of = tag.rfind("blockIdx.", 0) == 0 ? grid : block;
  if (&of == &block && tag.rfind("threadIdx.", 0) != 0)
    TVM_FFI_THROW(ValueError) << "launch parameter " << tag << " is not emulated";
  return tag.back() == 'x' ? of.x : tag.back() == 'y' ? of.y : of.z;
}

void run(const Kernel& kernel, const std::string& name, ffi::PackedArgs args) {
  const size_t count = kernel.arguments.size();
  std::vector<int64_t> values(count);
  std::vector<const void*> pointers;
  for (size_t i = 0; i < count; ++i) {
    const DLDataType type = kernel.arguments[i];
    const int at = static_cast<int>(i);
    if (type.code == kDLOpaqueHandle) {
      void* pointer = args[at].cast<void*>();
      std::memcpy(&values[i], &pointer, sizeof pointer);
      pointers.push_back(pointer);
    } else if (type.code == kDLFloat) {
      const double x = args[at].cast<double>();
      const float narrow = static_cast<float>(x);
      if (type.bits == 32) std::memcpy(&values[i], &narrow, sizeof narrow);
      if (type.bits == 64) std::memcpy(&values[i], &x, sizeof x);
    } else {
      values[i] = args[at].cast<int64_t>();
    }
  }
  dim3 grid, block;
  for (size_t i = 0; i < kernel.launch.size(); ++i) {
    const auto given = args[static_cast<int>(count + i)].cast<int64_t>();
    if (kernel.launch[i] != kDynamicShared)
      dimension(kernel.launch[i], grid, block) = static_cast<unsigned>(given);
    else if (given > kMostShared)
      TVM_FFI_THROW(RuntimeError) << name << ": " << given << " bytes of shared memory";
  }
  const auto launch = [thread = kernel.thread, grid, block, values,
                       pointers](cudaStream_t stream) mutable {
    std::vector<void*> places;
    for (int64_t& value : values) places.push_back(&value);
    return emulated::run(grid, block, thread, places.data(), stream, pointers.data(),
                         static_cast<int>(pointers.size()));
  };
  int device = 0;
  check(cudaGetDevice(&device), "GetDevice");
  const auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(kDLCUDA, device));
  check(emulated::submit(stream, launch), name.c_str());
}

class EmulatedModule final : public ffi::ModuleObj {
 public:
  explicit EmulatedModule(const ffi::Bytes& bytes) {
    Reader reader{bytes.data(), bytes.data() + bytes.size()};
    if (reader.string() != "cubin")
      TVM_FFI_THROW(ValueError) << "the library holds no machine code";
    const auto kernels = reader.number<uint64_t>();
    for (uint64_t k = 0; k < kernels; ++k) {
      const std::string key = reader.string();
      reader.string();  // the name again
      Kernel& kernel = kernels_[key];
      for (auto n = reader.number<uint64_t>(); n > 0; --n)
        kernel.arguments.push_back(reader.number<DLDataType>());
      for (auto n = reader.number<uint64_t>(); n > 0; --n) kernel.launch.push_back(reader.string());
      for (auto n = reader.number<uint64_t>(); n > 0; --n) reader.number<int32_t>();
    }
    load(reader.string());
  }
  const char* kind() const final { return "cuda"; }
  ffi::Optional<ffi::Function> GetFunction(const ffi::String& name) final {
    auto found = kernels_.find(std::string(name));
    if (found == kernels_.end()) return std::nullopt;
    const Kernel kernel = found->second;  // its code stays loaded until the process ends
    return ffi::Function::FromPacked(
        [kernel, name](ffi::PackedArgs args, ffi::Any*) { run(kernel, name, args); });
  }

 private:
  void load(const std::string& code) {
    char path[] = "/tmp/needle-emulated-XXXXXX";
    const int file = mkstemp(path);
    if (file < 0 || write(file, code.data(), code.size()) != static_cast<ssize_t>(code.size()))
      TVM_FFI_THROW(RuntimeError) << "the kernels cannot be written to " << path;
    close(file);
    void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    unlink(path);
    if (library == nullptr) TVM_FFI_THROW(RuntimeError) << dlerror();
    for (auto& [name, kernel] : kernels_) {
      kernel.thread = reinterpret_cast<void (*)(void*)>(dlsym(library, ("run_" + name).c_str()));
      if (kernel.thread == nullptr) TVM_FFI_THROW(RuntimeError) << "no kernel " << name;
    }
  }
  std::unordered_map<std::string, Kernel> kernels_;
};

TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = ffi::reflection;
  refl::GlobalDef()
      .def_packed("device_api.cuda",
                  [](ffi::PackedArgs, ffi::Any* rv) {
                    static auto* api = new EmulatedDevice;
                    *rv = static_cast<void*>(static_cast<DeviceAPI*>(api));
                  })
      .def("ffi.Module.load_from_bytes.cuda", [](const ffi::Bytes& bytes) {
        return ffi::Module(ffi::make_object<EmulatedModule>(bytes));
      });
}

}  // namespace
