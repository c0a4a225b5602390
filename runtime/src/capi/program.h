// Programs and calls, which the C API's handles point to.
#pragma once

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "capi/manifest.h"
#include "capi/safetensors.h"
#include "needle_runtime.h"

namespace needle::capi {

using Tensors = std::vector<tvm::ffi::Tensor>;

class Program {
 public:
  Program(const std::string& path, const needle_options& options);

  const Function& main() const { return manifest_.main; }
  // The arrays of a kind. Inputs and outputs do not include the state.
  const ArraySpec* specs(needle_kind kind, size_t* count) const;
  const ArraySpec& spec(needle_kind kind, const std::string& name, size_t* index) const;

  void set_weights(const std::vector<NamedArray>& arrays);
  // Replaces arrays of the state; with `whole`, all of them must be given.
  void set_state(const std::vector<NamedArray>& arrays, bool whole);
  Bytes state_file() const;
  void copy_state(const std::string& name, void* data, size_t bytes) const;

 private:
  friend class Call;

  tvm::ffi::Module new_machine() const;
  void use(const std::vector<NamedArray>& arrays, bool with_state);

  std::string path_;
  Manifest manifest_;
  int threads_;
  tvm::ffi::Optional<tvm::ffi::Function> executable_;  // makes virtual machines
  // Held while a machine is made: TVM then fills a map of the executable, which machines share.
  mutable std::mutex machines_mutex_;
  mutable std::mutex weights_mutex_;
  std::shared_ptr<const Tensors> weights_;  // packed; null if there are none yet
  std::atomic<uint64_t> generation_{0};     // increases when weights are set
  mutable std::mutex state_mutex_;          // held while a call steps the state
  Tensors state_;                           // empty if it has not been given yet
};

class Call {
 public:
  explicit Call(std::shared_ptr<Program> program);

  void set_input(const std::string& name, const void* data, size_t bytes, const int64_t* shape,
                 int32_t ndim);
  void set_output(const std::string& name, void* data, size_t bytes);
  void run();
  void output(const std::string& name, needle_array* array) const;

 private:
  struct Input {
    tvm::ffi::Tensor window;  // points at the memory for a call
    const void* given = nullptr;
    size_t bytes = 0;
    std::vector<int64_t> shape;
    std::optional<tvm::ffi::Tensor> copy;  // if `given` is not aligned enough
  };
  struct Output {
    void* given = nullptr;
    size_t given_bytes = 0;
    std::vector<int64_t> shape;  // of the next run's result
    size_t bytes = 0;
    std::optional<tvm::ffi::Tensor> window;  // for code that writes to given memory
    std::optional<tvm::ffi::Tensor> own;     // allocated by the call, or returned by the code
    // The result of the last successful run; `shape` and `bytes` may belong to a later failure.
    const void* data = nullptr;
    std::vector<int64_t> data_shape;
    size_t data_bytes = 0;

    void keep(const void* result) {
      data = result;
      data_shape = shape;
      data_bytes = bytes;
    }
  };

  void prepare();
  void check_indices(const Input& input, const ArraySpec& spec) const;
  void bind_weights();
  void place_inputs();
  void run_into();
  void run_main();
  void keep(size_t number, const tvm::ffi::Tensor& result);

  std::shared_ptr<Program> program_;
  tvm::ffi::Module machine_;
  tvm::ffi::Optional<tvm::ffi::Function> main_, into_, in_place_;
  size_t alignment_of(const ArraySpec& spec) const;
  std::vector<Input> inputs_;
  std::vector<Output> outputs_;
  std::vector<int64_t> sizes_;
  bool prepared_ = false;
  uint64_t generation_ = 0;
  std::shared_ptr<const Tensors> weights_;
  std::vector<tvm::ffi::AnyView> arguments_;
};

}  // namespace needle::capi
