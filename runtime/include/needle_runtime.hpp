// Run and train models that needle exported, from C++17: needle_runtime.h with exceptions and
// containers.
//
//   needle::Program program("model");
//   needle::Call call(program);
//   std::vector<float> x(512), y(10);
//   call.input("x", x).output("output.0", y).run();
//
// A function that fails throws needle::Error and changes nothing. Programs and calls can be moved,
// not copied. A call keeps its program open.
#ifndef NEEDLE_RUNTIME_HPP
#define NEEDLE_RUNTIME_HPP

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "needle_runtime.h"

namespace needle {

class Error : public std::runtime_error {
 public:
  Error(needle_status status, const std::string& reason)
      : std::runtime_error(reason), status_(status) {}
  // The kind of the error, such as NEEDLE_ERROR_INPUT.
  needle_status status() const { return status_; }

 private:
  needle_status status_;
};

// Throws an Error if a function of the C API failed.
inline void check(needle_status status) {
  if (status != NEEDLE_OK) throw Error(status, needle_error());
}

// The dtype for a C++ element type. C++17 has no types for float16 and bfloat16: pass their bits to
// input_bytes and output_bytes, or set the dtype of a needle_array.
template <class T>
constexpr needle_dtype dtype_of() {
  using U = std::remove_cv_t<T>;
  if constexpr (std::is_same_v<U, bool>) return NEEDLE_BOOL;
  if constexpr (std::is_same_v<U, float>) return NEEDLE_FLOAT32;
  if constexpr (std::is_same_v<U, double>) return NEEDLE_FLOAT64;
  static_assert(std::is_arithmetic_v<U> && sizeof(U) <= 8, "needle has no dtype for this type");
  constexpr int log2 = sizeof(U) == 8 ? 3 : sizeof(U) == 4 ? 2 : sizeof(U) == 2 ? 1 : 0;
  if constexpr (std::is_signed_v<U>) return static_cast<needle_dtype>(NEEDLE_INT8 + log2);
  return static_cast<needle_dtype>(NEEDLE_UINT8 + log2);
}

// A description of one of a program's arrays. An extent of -1 is a size that each call chooses.
struct Info {
  std::string name;
  needle_dtype dtype;
  std::vector<int64_t> shape;
};

// A named row-major array in memory, to set weights or state.
template <class T>
needle_array array(const char* name, const std::vector<T>& values,
                   const std::vector<int64_t>& shape) {
  static_assert(!std::is_same_v<T, bool>, "a std::vector<bool> has no memory of bools");
  return {name,
          dtype_of<T>(),
          static_cast<int32_t>(shape.size()),
          shape.data(),
          const_cast<T*>(values.data()),
          values.size() * sizeof(T)};
}

// The elements of an output, in memory of the call or of the caller.
template <class T>
struct View {
  const T* data;
  std::size_t size;  // elements
  std::vector<int64_t> shape;

  const T* begin() const { return data; }
  const T* end() const { return data + size; }
  const T& operator[](std::size_t i) const { return data[i]; }
};

struct Options {
  std::string public_key;  // a PEM file; "" requires no signature
  int threads = 0;  // the most threads per call; 0: the number for which the code was compiled
};

// An exported model, verified and loaded; any thread may use it.
class Program {
 public:
  explicit Program(const std::string& path, const Options& options = {}) {
    const needle_options chosen{sizeof chosen,
                                options.public_key.empty() ? nullptr : options.public_key.c_str(),
                                options.threads};
    needle_program* opened = nullptr;
    check(needle_open(path.c_str(), &chosen, &opened));
    handle_.reset(opened, needle_close);
  }
  Program(Program&&) = default;
  Program& operator=(Program&&) = default;

  std::vector<Info> inputs() const { return described(NEEDLE_INPUTS); }
  std::vector<Info> outputs() const { return described(NEEDLE_OUTPUTS); }
  std::vector<Info> weights() const { return described(NEEDLE_WEIGHTS); }
  std::vector<Info> state() const { return described(NEEDLE_STATE); }

  // Replace all weights by the arrays in a safetensors file. Calls that are running finish with the
  // old weights.
  void load_weights(const std::string& path) {
    check(needle_load_weights(handle_.get(), path.c_str()));
  }
  // Replace all weights by copies of arrays (see `array`), which are matched by name.
  void set_weights(const std::vector<needle_array>& arrays) {
    check(needle_set_weights(handle_.get(), arrays.data(), arrays.size()));
  }
  // Replace all weights by arrays in the state of another program, such as a training step. The
  // weight `w` gets the values of the array `prefix` + `w`.
  void copy_weights(const Program& step, const std::string& prefix = "") {
    std::vector<needle_array> arrays(needle_count(handle_.get(), NEEDLE_WEIGHTS));
    std::vector<std::vector<char>> values(arrays.size());
    for (std::size_t i = 0; i < arrays.size(); ++i) {
      check(needle_describe(handle_.get(), NEEDLE_WEIGHTS, i, &arrays[i]));
      arrays[i].bytes = needle_dtype_size(arrays[i].dtype);
      for (int32_t axis = 0; axis < arrays[i].ndim; ++axis)
        arrays[i].bytes *= static_cast<std::size_t>(arrays[i].shape[axis]);
      values[i].resize(arrays[i].bytes);
      arrays[i].data = values[i].data();
      check(needle_get_state(step.handle(), (prefix + arrays[i].name).c_str(), arrays[i].data,
                             arrays[i].bytes));
    }
    set_weights(arrays);
  }
  // Replace arrays of the state by copies; arrays that are not named stay as they are.
  void set_state(const std::vector<needle_array>& arrays) {
    check(needle_set_state(handle_.get(), arrays.data(), arrays.size()));
  }
  // Write the state to a safetensors file, or continue from one.
  void save_state(const std::string& path) const {
    check(needle_save_state(handle_.get(), path.c_str()));
  }
  void load_state(const std::string& path) {
    check(needle_load_state(handle_.get(), path.c_str()));
  }
  // A copy of one array of the state.
  template <class T>
  std::vector<T> state(const std::string& name) const {
    static_assert(!std::is_same_v<T, bool>, "a std::vector<bool> has no memory of bools");
    std::size_t index = 0, count = 1;
    check(needle_find(handle_.get(), NEEDLE_STATE, name.c_str(), &index));
    needle_array info;
    check(needle_describe(handle_.get(), NEEDLE_STATE, index, &info));
    if (info.dtype != dtype_of<T>())
      throw Error(NEEDLE_ERROR_INPUT, "'" + name + "' is " + needle_dtype_name(info.dtype) +
                                          ", not " + needle_dtype_name(dtype_of<T>()));
    for (int32_t i = 0; i < info.ndim; ++i) count *= static_cast<std::size_t>(info.shape[i]);
    std::vector<T> values(count);
    check(needle_get_state(handle_.get(), name.c_str(), values.data(), count * sizeof(T)));
    return values;
  }

  // For the C API.
  needle_program* handle() const { return handle_.get(); }

 private:
  friend class Call;
  std::vector<Info> described(needle_kind kind) const {
    std::vector<Info> found(needle_count(handle_.get(), kind));
    for (std::size_t i = 0; i < found.size(); ++i) {
      needle_array info;
      check(needle_describe(handle_.get(), kind, i, &info));
      found[i] = {info.name, info.dtype, {info.shape, info.shape + info.ndim}};
    }
    return found;
  }

  std::shared_ptr<needle_program> handle_;  // its calls share it
};

// The memory of a call's inputs and outputs; one thread at a time may use it.
class Call {
 public:
  explicit Call(Program& program) : program_(program.handle_) {
    needle_call* made = nullptr;
    check(needle_new_call(program_.get(), &made));
    handle_.reset(made);
  }

  // Use memory, which must stay valid, as an input of each following run. The shape is needed if
  // the program leaves sizes of this input to the call.
  template <class T>
  Call& input(const std::string& name, const T* data, std::size_t count,
              const std::vector<int64_t>& shape = {}) {
    match(NEEDLE_INPUTS, name, dtype_of<T>());
    return input_bytes(name, data, count * sizeof(T), shape);
  }
  template <class T>
  Call& input(const std::string& name, const std::vector<T>& values,
              const std::vector<int64_t>& shape = {}) {
    static_assert(!std::is_same_v<T, bool>, "a std::vector<bool> has no memory of bools");
    return input(name, values.data(), values.size(), shape);
  }
  template <class T>
  Call& input(const std::string& name, std::vector<T>&& values,
              const std::vector<int64_t>& shape = {}) = delete;  // the memory would be gone
  // The same for any dtype.
  Call& input_bytes(const std::string& name, const void* data, std::size_t bytes,
                    const std::vector<int64_t>& shape = {}) {
    check(needle_set_input(handle_.get(), name.c_str(), data, bytes,
                           shape.empty() ? nullptr : shape.data(),
                           static_cast<int32_t>(shape.size())));
    return *this;
  }

  // Have each following run write an output to memory.
  template <class T>
  Call& output(const std::string& name, T* data, std::size_t count) {
    match(NEEDLE_OUTPUTS, name, dtype_of<T>());
    return output_bytes(name, data, count * sizeof(T));
  }
  template <class T>
  Call& output(const std::string& name, std::vector<T>& values) {
    static_assert(!std::is_same_v<T, bool>, "a std::vector<bool> has no memory of bools");
    return output(name, values.data(), values.size());
  }
  Call& output_bytes(const std::string& name, void* data, std::size_t bytes) {
    check(needle_set_output(handle_.get(), name.c_str(), data, bytes));
    return *this;
  }

  void run() { check(needle_run(handle_.get())); }

  // An output of the last run, valid until the next.
  template <class T>
  View<T> result(const std::string& name) const {
    match(NEEDLE_OUTPUTS, name, dtype_of<T>());
    needle_array array;
    check(needle_output(handle_.get(), name.c_str(), &array));
    return {static_cast<const T*>(array.data),
            array.bytes / sizeof(T),
            {array.shape, array.shape + array.ndim}};
  }

  // For the C API.
  needle_call* handle() const { return handle_.get(); }

 private:
  struct Free {
    void operator()(needle_call* call) const { needle_free_call(call); }
  };
  void match(needle_kind kind, const std::string& name, needle_dtype dtype) const {
    std::size_t index = 0;
    check(needle_find(program_.get(), kind, name.c_str(), &index));
    needle_array info;
    check(needle_describe(program_.get(), kind, index, &info));
    if (info.dtype != dtype)
      throw Error(NEEDLE_ERROR_INPUT, "'" + name + "' is " + needle_dtype_name(info.dtype) +
                                          ", not " + needle_dtype_name(dtype));
  }

  std::shared_ptr<needle_program> program_;
  std::unique_ptr<needle_call, Free> handle_;
};

}  // namespace needle

#endif  // NEEDLE_RUNTIME_HPP
