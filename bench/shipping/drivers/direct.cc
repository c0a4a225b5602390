// Calls the library's function main_into directly, through tvm_ffi's C++, on one row of
// relu(x @ weight + bias), with no checks and no copies. Arguments: LIBRARY INPUT WEIGHT BIAS.
#include <dlfcn.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <cstdlib>
#include <cstring>

#include "serve.h"

namespace ffi = tvm::ffi;

struct Aligned {
  void AllocData(DLTensor* tensor) {
    tensor->data = std::aligned_alloc(64, (ffi::GetDataSize(*tensor) + 63) / 64 * 64);
  }
  void FreeData(DLTensor* tensor) { std::free(tensor->data); }
};

ffi::Tensor tensor(const std::vector<int64_t>& shape, const std::vector<float>& values) {
  const ffi::Tensor made =
      ffi::Tensor::FromNDAlloc(Aligned(), ffi::ShapeView(shape.data(), shape.size()),
                               DLDataType{kDLFloat, 32, 1}, DLDevice{kDLCPU, 0});
  std::memcpy(made.data_ptr(), values.data(), values.size() * sizeof(float));
  return made;
}

int main(int, char** arguments) {
  return guarded([&] {
    if (dlopen("libtvm_runtime.so", RTLD_NOW | RTLD_GLOBAL) == nullptr)
      throw std::runtime_error(dlerror());
    const auto load = ffi::Function::GetGlobalRequired("ffi.Module.load_from_file.so");
    const auto library = load(std::string(arguments[1]), "so").cast<ffi::Module>();
    const auto machine = library->GetFunction("vm_load_executable").value()().cast<ffi::Module>();
    constexpr int kPooled = 2;  // the virtual machine's allocator, which keeps freed memory
    machine->GetFunction("vm_initialization").value()(static_cast<int>(kDLCPU), 0, kPooled);
    const std::vector<float> x = read_floats(arguments[2]), weight = read_floats(arguments[3]),
                             bias = read_floats(arguments[4]);
    const auto rows = static_cast<int64_t>(x.size()), columns = static_cast<int64_t>(bias.size());
    const ffi::Array<ffi::Tensor> weights = {tensor({rows, columns}, weight),
                                             tensor({1, columns}, bias)};
    const auto packed = machine->GetFunction("main_transform_params")
                            .value()(weights)
                            .cast<ffi::Array<ffi::Tensor>>();
    const ffi::Tensor input = tensor({1, rows}, x), output = tensor({1, columns}, bias);
    std::vector<ffi::AnyView> given = {input, output};
    for (const ffi::Tensor& each : packed) given.emplace_back(each);
    const ffi::Function into = machine->GetFunction("main_into").value();
    serve(bias.size(), [&] {
      ffi::Any result;
      into.CallPacked(given.data(), static_cast<int32_t>(given.size()), &result);
      return static_cast<const float*>(output.data_ptr());
    });
  });
}
