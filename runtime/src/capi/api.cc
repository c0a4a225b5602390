// The C API: handles, error codes and error messages.
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "capi/dtypes.h"
#include "capi/failure.h"
#include "capi/files.h"
#include "capi/program.h"
#include "needle_runtime.h"

struct needle_program {
  std::shared_ptr<needle::capi::Program> program;  // its calls share it
};

struct needle_call {
  needle::capi::Call call;
};

namespace {

using needle::capi::ArraySpec;
using needle::capi::Failure;
using needle::capi::NamedArray;

thread_local std::string t_error;

needle_status failed(needle_status status, const char* reason) {
  try {
    t_error = reason;
    // Messages quote names from files, whose control characters must not reach a terminal.
    for (char& letter : t_error)
      if (static_cast<unsigned char>(letter) < ' ' || letter == 0x7f) letter = '?';
  } catch (const std::bad_alloc&) {
    t_error.clear();
  }
  return status;
}

template <class F>
needle_status guarded(F&& work) {
  try {
    work();
    return NEEDLE_OK;
  } catch (const Failure& error) {
    return failed(error.status, error.what());
  } catch (const std::bad_alloc&) {
    return failed(NEEDLE_ERROR_MEMORY, "not enough memory");
  } catch (const std::exception& error) {
    return failed(NEEDLE_ERROR_CODE, error.what());
  }
}

const needle::capi::Dtype* row_of(needle_dtype dtype) {
  const auto number = static_cast<size_t>(dtype);
  return number < std::size(needle::capi::kDtypes) ? &needle::capi::kDtypes[number] : nullptr;
}

template <class T>
T& checked(T* pointer, const char* name) {
  if (pointer == nullptr) throw Failure(NEEDLE_ERROR_USAGE, std::string(name) + ": a null pointer");
  return *pointer;
}

std::vector<NamedArray> arrays_of(const needle_array* arrays, size_t count) {
  if (count > 0) checked(arrays, "arrays");
  std::vector<NamedArray> found;
  for (size_t i = 0; i < count; ++i) {
    const needle_array& array = arrays[i];
    NamedArray named{&checked(array.name, "name"), array.dtype, {}, nullptr, 0};
    if (array.ndim < 0 || (array.ndim > 0 && array.shape == nullptr))
      throw Failure(NEEDLE_ERROR_USAGE,
                    "'" + named.name + "': ndim is negative, or shape is a null pointer");
    if (needle_dtype_size(array.dtype) == 0)
      throw Failure(NEEDLE_ERROR_USAGE, "'" + named.name + "': its dtype is not a needle_dtype");
    named.shape.assign(array.shape, array.shape + array.ndim);
    if (!needle::capi::byte_size(array.dtype, named.shape, &named.bytes) ||
        named.bytes != array.bytes)
      throw Failure(NEEDLE_ERROR_INPUT,
                    "'" + named.name + "': " + needle::capi::describe(array.dtype, named.shape) +
                        " does not have " + std::to_string(array.bytes) + " bytes");
    if (array.bytes > 0) checked(static_cast<const char*>(array.data), "data");
    named.data = static_cast<const char*>(array.data);
    found.push_back(std::move(named));
  }
  return found;
}

void of_file(const char* path, const std::function<void(const std::vector<NamedArray>&)>& use) {
  const needle::capi::Bytes bytes = needle::capi::read_file(&checked(path, "path"));
  try {
    use(needle::capi::read_safetensors(bytes));
  } catch (const std::invalid_argument& error) {
    throw Failure(NEEDLE_ERROR_FILE,
                  std::string(path) + ": is not a safetensors file (" + error.what() + ")");
  }
}

}  // namespace

extern "C" {

const char* needle_version(void) { return NEEDLE_VERSION; }

const char* needle_error(void) { return t_error.c_str(); }

size_t needle_dtype_size(needle_dtype dtype) {
  const needle::capi::Dtype* row = row_of(dtype);
  return row == nullptr ? 0 : row->bytes;
}

const char* needle_dtype_name(needle_dtype dtype) {
  const needle::capi::Dtype* row = row_of(dtype);
  return row == nullptr ? nullptr : row->name;
}

needle_status needle_open(const char* path, const needle_options* options,
                          needle_program** program) {
  return guarded([&] {
    needle_program*& opened = checked(program, "program");
    checked(path, "path");
    needle_options chosen{sizeof chosen, nullptr, 0};
    if (options != nullptr) {
      if (options->size != sizeof chosen)
        throw Failure(NEEDLE_ERROR_USAGE, "options: size must be sizeof(needle_options)");
      chosen = *options;
    }
    if (chosen.threads < 0)
      throw Failure(NEEDLE_ERROR_USAGE, "options: threads is " + std::to_string(chosen.threads) +
                                            ": must be 0 or more");
    opened = new needle_program{std::make_shared<needle::capi::Program>(path, chosen)};
  });
}

void needle_close(needle_program* program) { delete program; }

size_t needle_count(const needle_program* program, needle_kind kind) {
  size_t count = 0;
  guarded([&] { checked(program, "program").program->specs(kind, &count); });
  return count;
}

needle_status needle_describe(const needle_program* program, needle_kind kind, size_t index,
                              needle_array* array) {
  return guarded([&] {
    needle_array& found = checked(array, "array");
    size_t count = 0;
    const ArraySpec* specs = checked(program, "program").program->specs(kind, &count);
    if (index >= count)
      throw Failure(NEEDLE_ERROR_USAGE, "index " + std::to_string(index) + ": there are " +
                                            std::to_string(count) + " arrays of that kind");
    const ArraySpec& spec = specs[index];
    found = {spec.name.c_str(),     spec.dtype, static_cast<int32_t>(spec.described.size()),
             spec.described.data(), nullptr,    0};
  });
}

needle_status needle_find(const needle_program* program, needle_kind kind, const char* name,
                          size_t* index) {
  return guarded([&] {
    size_t found = 0;
    checked(program, "program").program->spec(kind, &checked(name, "name"), &found);
    checked(index, "index") = found;
  });
}

needle_status needle_load_weights(needle_program* program, const char* path) {
  return guarded([&] {
    needle::capi::Program& self = *checked(program, "program").program;
    of_file(path, [&](const auto& arrays) { self.set_weights(arrays); });
  });
}

needle_status needle_set_weights(needle_program* program, const needle_array* arrays,
                                 size_t count) {
  return guarded(
      [&] { checked(program, "program").program->set_weights(arrays_of(arrays, count)); });
}

needle_status needle_save_state(const needle_program* program, const char* path) {
  return guarded([&] {
    const needle::capi::Bytes bytes = checked(program, "program").program->state_file();
    needle::capi::write_file(&checked(path, "path"), bytes);
  });
}

needle_status needle_load_state(needle_program* program, const char* path) {
  return guarded([&] {
    needle::capi::Program& self = *checked(program, "program").program;
    of_file(path, [&](const auto& arrays) { self.set_state(arrays, true); });
  });
}

needle_status needle_get_state(const needle_program* program, const char* name, void* data,
                               size_t bytes) {
  return guarded([&] {
    if (bytes > 0) checked(static_cast<char*>(data), "data");
    checked(program, "program").program->copy_state(&checked(name, "name"), data, bytes);
  });
}

needle_status needle_set_state(needle_program* program, const needle_array* arrays, size_t count) {
  return guarded(
      [&] { checked(program, "program").program->set_state(arrays_of(arrays, count), false); });
}

needle_status needle_new_call(needle_program* program, needle_call** call) {
  return guarded([&] {
    needle_call*& made = checked(call, "call");
    made = new needle_call{needle::capi::Call(checked(program, "program").program)};
  });
}

void needle_free_call(needle_call* call) { delete call; }

needle_status needle_set_input(needle_call* call, const char* name, const void* data, size_t bytes,
                               const int64_t* shape, int32_t ndim) {
  return guarded([&] {
    checked(call, "call").call.set_input(&checked(name, "name"), data, bytes, shape, ndim);
  });
}

needle_status needle_set_output(needle_call* call, const char* name, void* data, size_t bytes) {
  return guarded(
      [&] { checked(call, "call").call.set_output(&checked(name, "name"), data, bytes); });
}

needle_status needle_run(needle_call* call) {
  return guarded([&] { checked(call, "call").call.run(); });
}

needle_status needle_output(const needle_call* call, const char* name, needle_array* array) {
  return guarded(
      [&] { checked(call, "call").call.output(&checked(name, "name"), &checked(array, "array")); });
}

}  // extern "C"
