#include "capi/program.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <new>
#include <set>
#include <stdexcept>

#include "capi/failure.h"
#include "capi/features.h"
#include "capi/library.h"
#include "capi/sha256.h"
#include "threads/adopt.h"
#include "threads/thread_pool.h"

namespace needle::capi {

namespace {

namespace ffi = tvm::ffi;

// Code that was not built for inputs at any address ends the process if memory is aligned to less.
constexpr size_t kAlignment = 64;  // bytes
// The virtual machine's allocators: the naive one asks the system each time; the pooled one keeps
// freed memory for the next allocation of the same size, so it is not for sizes that differ from
// call to call.
constexpr int kNaive = 1, kPooled = 2;

DLDataType dl_dtype(needle_dtype dtype) {
  const auto bits = static_cast<uint8_t>(8 * needle_dtype_size(dtype));
  switch (dtype) {
    case NEEDLE_BOOL:
      return {kDLBool, 8, 1};
    case NEEDLE_BFLOAT16:
      return {kDLBfloat, 16, 1};
    case NEEDLE_FLOAT16:
    case NEEDLE_FLOAT32:
    case NEEDLE_FLOAT64:
      return {kDLFloat, bits, 1};
    case NEEDLE_UINT8:
    case NEEDLE_UINT16:
    case NEEDLE_UINT32:
    case NEEDLE_UINT64:
      return {kDLUInt, bits, 1};
    default:
      return {kDLInt, bits, 1};
  }
}

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
  return ffi::Tensor::FromNDAlloc(Memory(), ffi::ShapeView(shape.data(), shape.size()),
                                  dl_dtype(dtype), DLDevice{kDLCPU, 0});
}

void point(const ffi::Tensor& window, const void* data) {
  const_cast<DLTensor*>(window.GetDLTensorPtr())->data = const_cast<void*>(data);
}

const char* data_of(const ffi::Tensor& tensor) {
  const DLTensor* array = tensor.GetDLTensorPtr();
  return static_cast<const char*>(array->data) + array->byte_offset;
}

void copy_bytes(void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memmove(to, from, bytes);
}

bool is_aligned(const void* data, size_t alignment) {
  return reinterpret_cast<uintptr_t>(data) % alignment == 0;
}

bool overlap(const void* a, size_t bytes_a, const void* b, size_t bytes_b) {
  const auto x = reinterpret_cast<uintptr_t>(a), y = reinterpret_cast<uintptr_t>(b);
  return bytes_a > 0 && bytes_b > 0 && x < y + bytes_b && y < x + bytes_a;
}

// Calls a function of the code; its errors become Failures.
ffi::Any called(const ffi::Function& function, const std::vector<ffi::AnyView>& arguments) {
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

std::vector<ffi::Tensor> tensors_of(const ffi::Any& result) {
  if (const auto one = result.as<ffi::Tensor>()) return {*one};
  std::vector<ffi::Tensor> tensors;
  if (const auto several = result.as<ffi::Array<ffi::Any>>())
    for (const ffi::Any& each : *several)
      if (const auto tensor = each.as<ffi::Tensor>()) tensors.push_back(*tensor);
  return tensors;
}

template <class T>
bool within(const void* data, size_t bytes, int64_t low, int64_t high, std::string* wrong) {
  for (size_t i = 0; i < bytes / sizeof(T); ++i) {
    T x;  // the caller's memory may have any address
    std::memcpy(&x, static_cast<const char*>(data) + i * sizeof(T), sizeof(T));
    if constexpr (std::is_floating_point_v<T>) {
      // Floats are truncated towards zero when they become indices; a NaN is not an index.
      if (x > static_cast<T>(low - 1) && x < static_cast<T>(high + 1)) continue;
    } else if constexpr (std::is_unsigned_v<T>) {
      if (high >= 0 && x <= static_cast<uint64_t>(high) &&
          (low <= 0 || x >= static_cast<uint64_t>(low)))
        continue;
    } else {
      if (x >= low && x <= high) continue;
    }
    *wrong = std::to_string(x);
    return false;
  }
  return true;
}

bool indices_within(needle_dtype dtype, const void* data, size_t bytes, int64_t low, int64_t high,
                    std::string* wrong) {
  switch (dtype) {
    case NEEDLE_INT8:
      return within<int8_t>(data, bytes, low, high, wrong);
    case NEEDLE_INT16:
      return within<int16_t>(data, bytes, low, high, wrong);
    case NEEDLE_INT32:
      return within<int32_t>(data, bytes, low, high, wrong);
    case NEEDLE_INT64:
      return within<int64_t>(data, bytes, low, high, wrong);
    case NEEDLE_BOOL:
    case NEEDLE_UINT8:
      return within<uint8_t>(data, bytes, low, high, wrong);
    case NEEDLE_UINT16:
      return within<uint16_t>(data, bytes, low, high, wrong);
    case NEEDLE_UINT32:
      return within<uint32_t>(data, bytes, low, high, wrong);
    case NEEDLE_UINT64:
      return within<uint64_t>(data, bytes, low, high, wrong);
    case NEEDLE_FLOAT32:
      return within<float>(data, bytes, low, high, wrong);
    case NEEDLE_FLOAT64:
      return within<double>(data, bytes, low, high, wrong);
    default:
      throw Failure(NEEDLE_ERROR_INPUT, std::string("indices of dtype ") +
                                            needle_dtype_name(dtype) +
                                            " are not supported by the C runtime");
  }
}

ffi::Tensor copied(const NamedArray& array) {
  ffi::Tensor tensor = new_tensor<Aligned>(array.dtype, array.shape);
  copy_bytes(const_cast<char*>(data_of(tensor)), array.data, array.bytes);
  return tensor;
}

bool same(const NamedArray& one, const NamedArray& other) {
  return one.dtype == other.dtype && one.shape == other.shape &&
         (one.bytes == 0 || std::memcmp(one.data, other.data, one.bytes) == 0);
}

std::string digest_of(const NamedArray& array) {  // as needle_runtime.artifact.function.digest_of
  std::string text = needle_dtype_name(array.dtype);
  text += "[";
  for (size_t i = 0; i < array.shape.size(); ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(array.shape[i]);
  text += "]";
  text.append(array.data, array.bytes);
  return sha256(text.data(), text.size());
}

// The arrays for `specs`, in their order, by the rules of needle_runtime.weights.in_order. Raises a
// Failure that lists everything that does not fit.
std::vector<NamedArray> in_order(const Function& main, const std::vector<const ArraySpec*>& specs,
                                 const std::vector<NamedArray>& given, bool weights) {
  std::map<std::string, const NamedArray*> by_name;
  std::map<std::string, const std::vector<std::string>*> tied;
  std::set<std::string> wanted;
  std::vector<std::string> problems;
  for (const ArraySpec* spec : specs) wanted.insert(spec->name);
  if (weights)
    for (const auto& group : main.ties)
      for (const std::string& name : group) tied[name] = &group;
  for (const NamedArray& array : given) {
    const std::string name = quote(array.name);
    const auto fixed = main.fixed.find(array.name);
    if (weights && fixed != main.fixed.end()) {
      if (fixed->second && digest_of(array) != *fixed->second)
        problems.push_back(name + " is a constant of the code, and has another value there");
    } else if (wanted.count(array.name) == 0 && tied.count(array.name) == 0) {
      problems.push_back("unexpected " + name);
    } else if (!by_name.emplace(array.name, &array).second) {
      problems.push_back(name + " is given twice");
    }
  }
  std::vector<NamedArray> found;
  for (const ArraySpec* spec : specs) {
    auto at = by_name.find(spec->name);
    if (at == by_name.end() && tied.count(spec->name) != 0)
      for (const std::string& name : *tied[spec->name])
        if (at == by_name.end()) at = by_name.find(name);
    if (at == by_name.end()) {
      problems.push_back("missing " + quote(spec->name));
      continue;
    }
    const NamedArray& array = *at->second;
    if (array.dtype != spec->dtype || array.shape != spec->described)
      problems.push_back(quote(at->first) + " is " + describe(array.dtype, array.shape) + ", not " +
                         describe(*spec));
    found.push_back(array);
  }
  if (weights)
    for (const auto& group : main.ties) {
      const NamedArray* first = nullptr;
      for (const std::string& name : group) {
        const auto at = by_name.find(name);
        if (at == by_name.end()) continue;
        if (first == nullptr) first = at->second;
        if (!same(*first, *at->second))
          problems.push_back(quote(first->name) + " and " + quote(name) +
                             " are one parameter and have different values");
      }
    }
  if (problems.empty()) return found;
  std::string text;
  for (const std::string& each : problems) text += (text.empty() ? "" : "; ") + each;
  throw Failure(NEEDLE_ERROR_WEIGHTS, "weights do not fit: " + text);
}

std::vector<const ArraySpec*> pointers(const ArraySpec* first, size_t count) {
  std::vector<const ArraySpec*> found;
  for (size_t i = 0; i < count; ++i) found.push_back(first + i);
  return found;
}

}  // namespace

Program::Program(const std::string& path, const needle_options& options) : path_(path) {
  Bytes library;
  std::optional<Bytes> params;
  {
    const Folder folder(path);
    manifest_ = read_manifest(folder, options.public_key, &library, &params);
  }
  if (manifest_.kind != "llvm")
    throw Failure(NEEDLE_ERROR_TARGET, path + ": is compiled for " + quote(manifest_.kind) +
                                           "; the C runtime runs code for processors");
  std::string lacking;
  for (const std::string& name : missing_features(manifest_.features))
    lacking += (lacking.empty() ? "" : ", ") + name;
  if (!lacking.empty())
    throw Failure(NEEDLE_ERROR_TARGET,
                  path + ": is compiled for " +
                      (manifest_.mcpu.empty() ? "another processor" : manifest_.mcpu) +
                      "; this one lacks " + lacking);
  const ffi::Module module = load_code(library, path);
  const int cores = num_threads();
  threads_ = manifest_.threads > 0 ? std::min(manifest_.threads, cores) : cores;
  if (options.threads > 0) threads_ = std::min(threads_, options.threads);
  executable_ = module->GetFunction("vm_load_executable");
  if (!executable_.has_value())
    throw Failure(NEEDLE_ERROR_ARTIFACT, path + "/lib.so: is not code of needle");
  if (params) {
    try {
      use(read_safetensors(*params), true);
    } catch (const std::invalid_argument& error) {
      throw Failure(NEEDLE_ERROR_ARTIFACT,
                    path + "/params.safetensors: cannot be read (" + error.what() + ")");
    }
  } else if (main().params.empty()) {
    weights_ = std::make_shared<Tensors>();
    ++generation_;
  }
}

const ArraySpec* Program::specs(needle_kind kind, size_t* count) const {
  const size_t states = main().states;
  switch (kind) {
    case NEEDLE_INPUTS:
      *count = main().inputs.size() - states;
      return main().inputs.data();
    case NEEDLE_OUTPUTS:
      *count = main().outputs.size() - states;
      return main().outputs.data();
    case NEEDLE_WEIGHTS:
      *count = main().params.size();
      return main().params.data();
    case NEEDLE_STATE:
      *count = states;
      return main().inputs.data() + main().inputs.size() - states;
  }
  throw Failure(NEEDLE_ERROR_USAGE, "no needle_kind: " + std::to_string(kind));
}

const ArraySpec& Program::spec(needle_kind kind, const std::string& name, size_t* index) const {
  static const char* const kinds[] = {"input", "output", "weight", "array of the state"};
  size_t count = 0;
  const ArraySpec* found = specs(kind, &count);
  std::string names;
  for (*index = 0; *index < count; ++*index) {
    if (found[*index].name == name) return found[*index];
    if (*index < 20) names += (*index == 0 ? "" : ", ") + quote(found[*index].name);
  }
  throw Failure(NEEDLE_ERROR_INPUT, std::string("no ") + kinds[kind] + " is named " + quote(name) +
                                        (count == 0 ? "; there are none" : "; there are " + names) +
                                        (count > 20 ? ", ..." : ""));
}

ffi::Module Program::new_machine() const {
  auto machine = (*executable_)().cast<ffi::Module>();
  const bool pooled = main().sizes.dims().empty();
  machine->GetFunction("vm_initialization")
      .value()(static_cast<int>(kDLCPU), 0, pooled ? kPooled : kNaive);
  return machine;
}

void Program::use(const std::vector<NamedArray>& arrays, bool with_state) {
  size_t states = 0;
  const ArraySpec* state = specs(NEEDLE_STATE, &states);
  std::vector<const ArraySpec*> wanted = pointers(main().params.data(), main().params.size());
  if (with_state)
    for (const ArraySpec* each : pointers(state, states)) wanted.push_back(each);
  const std::vector<NamedArray> ordered = in_order(main(), wanted, arrays, true);
  Tensors tensors, first;
  for (size_t i = 0; i < ordered.size(); ++i)
    (i < main().params.size() ? tensors : first).push_back(copied(ordered[i]));
  if (!main().transform.empty() && !tensors.empty()) {
    const ffi::Module machine = new_machine();
    const auto pack = machine->GetFunction(main().transform);
    if (!pack.has_value())
      throw Failure(NEEDLE_ERROR_ARTIFACT, path_ + "/lib.so: has no " + main().transform);
    use_threads(threads_);
    const ffi::Array<ffi::Tensor> given(tensors.begin(), tensors.end());
    tensors = tensors_of(called(*pack, {ffi::AnyView(given)}));
  }
  {
    const std::lock_guard<std::mutex> lock(weights_mutex_);
    weights_ = std::make_shared<Tensors>(std::move(tensors));
    ++generation_;
  }
  if (with_state) {
    const std::lock_guard<std::mutex> lock(state_mutex_);
    state_ = std::move(first);
  }
}

void Program::set_weights(const std::vector<NamedArray>& arrays) { use(arrays, false); }

void Program::set_state(const std::vector<NamedArray>& arrays, bool whole) {
  size_t count = 0, index = 0;
  const ArraySpec* first = specs(NEEDLE_STATE, &count);
  std::vector<const ArraySpec*> wanted;
  if (whole) {
    wanted = pointers(first, count);
  } else {
    for (const NamedArray& array : arrays) {
      spec(NEEDLE_STATE, array.name, &index);
      wanted.push_back(first + index);
    }
  }
  const std::vector<NamedArray> ordered = in_order(main(), wanted, arrays, false);
  const std::lock_guard<std::mutex> lock(state_mutex_);
  if (state_.size() != count) throw Failure(NEEDLE_ERROR_WEIGHTS, "this artifact carries no state");
  for (size_t i = 0; i < ordered.size(); ++i)
    copy_bytes(const_cast<char*>(data_of(state_[static_cast<size_t>(wanted[i] - first)])),
               ordered[i].data, ordered[i].bytes);
}

Bytes Program::state_file() const {
  size_t count = 0;
  const ArraySpec* first = specs(NEEDLE_STATE, &count);
  const std::lock_guard<std::mutex> lock(state_mutex_);
  if (state_.size() != count) throw Failure(NEEDLE_ERROR_WEIGHTS, "this artifact carries no state");
  std::vector<NamedArray> arrays;
  for (size_t i = 0; i < state_.size(); ++i) {
    const ArraySpec& spec = first[i];
    NamedArray array{spec.name, spec.dtype, spec.described, data_of(state_[i]), 0};
    byte_size(array.dtype, array.shape, &array.bytes);
    arrays.push_back(std::move(array));
  }
  return write_safetensors(arrays);
}

void Program::copy_state(const std::string& name, void* data, size_t bytes) const {
  size_t index = 0, wanted = 0;
  const ArraySpec& found = spec(NEEDLE_STATE, name, &index);
  byte_size(found.dtype, found.described, &wanted);
  if (bytes != wanted)
    throw Failure(NEEDLE_ERROR_INPUT, quote(name) + " has " + std::to_string(wanted) +
                                          " bytes, and the memory for it " + std::to_string(bytes));
  const std::lock_guard<std::mutex> lock(state_mutex_);
  if (index >= state_.size()) throw Failure(NEEDLE_ERROR_WEIGHTS, "this artifact carries no state");
  copy_bytes(data, data_of(state_[index]), bytes);
}

Call::Call(std::shared_ptr<Program> program)
    : program_(std::move(program)), machine_(program_->new_machine()) {
  const Function& main = program_->main();
  main_ = machine_->GetFunction("main");
  if (main.states == 0 && main.sizes.dims().empty()) into_ = machine_->GetFunction("main_into");
  const size_t own = main.inputs.size() - main.states;
  const bool of_state = std::all_of(main.in_place.begin(), main.in_place.end(),
                                    [own](const auto& pair) { return pair.second >= own; });
  if (!main.in_place.empty() && of_state) in_place_ = machine_->GetFunction("main_in_place");
  if (!main_.has_value())
    throw Failure(NEEDLE_ERROR_ARTIFACT, program_->path_ + "/lib.so: has no main");
  for (size_t i = 0; i < own; ++i)
    inputs_.push_back({new_tensor<Foreign>(main.inputs[i].dtype, {}), nullptr, 0, {}, {}});
  outputs_.resize(main.outputs.size() - main.states);
}

void Call::set_input(const std::string& name, const void* data, size_t bytes, const int64_t* shape,
                     int32_t ndim) {
  size_t index = 0, wanted = 0;
  const ArraySpec& spec = program_->spec(NEEDLE_INPUTS, name, &index);
  std::vector<int64_t> extents = spec.described;
  if (shape != nullptr || ndim != 0) {
    if (ndim < 0 || (shape == nullptr && ndim > 0))
      throw Failure(NEEDLE_ERROR_USAGE, "input " + quote(name) + ": a shape without extents");
    extents.assign(shape, shape + ndim);
  } else if (std::count(extents.begin(), extents.end(), -1) > 0) {
    throw Failure(NEEDLE_ERROR_INPUT, "input " + quote(name) + " is " + describe(spec) +
                                          ", whose sizes each call chooses: its shape is needed");
  }
  bool fits = extents.size() == spec.described.size();
  for (size_t i = 0; fits && i < extents.size(); ++i)
    fits = extents[i] >= 0 && (spec.described[i] == -1 || spec.described[i] == extents[i]);
  if (!fits)
    throw Failure(NEEDLE_ERROR_INPUT, "input " + quote(name) + " is " +
                                          describe(spec.dtype, extents) +
                                          ", the model was compiled for " + describe(spec));
  if (!byte_size(spec.dtype, extents, &wanted) || wanted != bytes)
    throw Failure(NEEDLE_ERROR_INPUT, "input " + quote(name) + ": " +
                                          describe(spec.dtype, extents) + " has " +
                                          std::to_string(wanted) + " bytes, and the memory given " +
                                          std::to_string(bytes));
  if (data == nullptr && bytes > 0)
    throw Failure(NEEDLE_ERROR_USAGE, "input " + quote(name) + ": a null pointer");
  Input& input = inputs_[index];
  if (input.shape != extents || input.given == nullptr) {
    ffi::Tensor window = new_tensor<Foreign>(spec.dtype, extents);
    input.copy = {};
    input.window = std::move(window);
    input.shape = std::move(extents);
  }
  static char nothing[kAlignment];  // the memory of empty arrays
  input.given = bytes == 0 ? nothing : data;
  input.bytes = bytes;
  prepared_ = false;
}

void Call::set_output(const std::string& name, void* data, size_t bytes) {
  size_t index = 0, wanted = 0;
  const ArraySpec& spec = program_->spec(NEEDLE_OUTPUTS, name, &index);
  const bool open = std::count(spec.described.begin(), spec.described.end(), -1) > 0;
  if (data != nullptr && !open) {
    byte_size(spec.dtype, spec.described, &wanted);
    if (bytes != wanted)
      throw Failure(NEEDLE_ERROR_INPUT, "output " + quote(name) + " is " + describe(spec) +
                                            ", which has " + std::to_string(wanted) +
                                            " bytes, and the memory for it " +
                                            std::to_string(bytes));
  }
  outputs_[index].given = data;
  outputs_[index].given_bytes = bytes;
  prepared_ = false;
}

// Checks what depends on all inputs and outputs together, once after they have been set.
void Call::prepare() {
  const Function& main = program_->main();
  std::vector<std::vector<int64_t>> shapes;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (inputs_[i].given == nullptr)
      throw Failure(NEEDLE_ERROR_INPUT, "input " + quote(main.inputs[i].name) + " was not set");
    shapes.push_back(inputs_[i].shape);
  }
  for (size_t i = inputs_.size(); i < main.inputs.size(); ++i)
    shapes.push_back(main.inputs[i].described);
  sizes_ = main.sizes.of(shapes);
  for (size_t i = 0; i < outputs_.size(); ++i) {
    Output& output = outputs_[i];
    const ArraySpec& spec = main.outputs[i];
    try {
      output.shape = shape_at(spec.shape, sizes_);
    } catch (const std::overflow_error&) {
      output.shape = {-1};
    }
    if (!byte_size(spec.dtype, output.shape, &output.bytes))
      throw Failure(NEEDLE_ERROR_INPUT, "output " + quote(spec.name) + ": " + describe(spec) +
                                            " has more than 2^63 - 1 bytes at these sizes");
    if (output.given == nullptr) continue;
    if (output.given_bytes != output.bytes)
      throw Failure(NEEDLE_ERROR_INPUT,
                    "output " + quote(spec.name) + " is " + describe(spec.dtype, output.shape) +
                        ", which has " + std::to_string(output.bytes) +
                        " bytes, and the memory for it " + std::to_string(output.given_bytes));
    for (size_t j = 0; j < inputs_.size(); ++j)
      if (overlap(output.given, output.bytes, inputs_[j].given, inputs_[j].bytes))
        throw Failure(NEEDLE_ERROR_INPUT, "output " + quote(spec.name) + " overlaps input " +
                                              quote(main.inputs[j].name));
    for (size_t j = 0; j < i; ++j)
      if (overlap(output.given, output.bytes, outputs_[j].given, outputs_[j].bytes))
        throw Failure(NEEDLE_ERROR_INPUT, "output " + quote(spec.name) + " overlaps output " +
                                              quote(main.outputs[j].name));
  }
  if (into_.has_value())
    for (size_t i = 0; i < outputs_.size(); ++i) {
      Output& output = outputs_[i];
      if (!output.window.has_value())
        output.window = new_tensor<Foreign>(main.outputs[i].dtype, output.shape);
      const bool direct = output.given != nullptr && is_aligned(output.given, kAlignment);
      if (!direct && !output.own.has_value())
        output.own = new_tensor<Aligned>(main.outputs[i].dtype, output.shape);
      point(*output.window, direct ? output.given : data_of(*output.own));
    }
  weights_.reset();  // the arguments are made anew
  prepared_ = true;
}

size_t Call::alignment_of(const ArraySpec& spec) const {
  return program_->main().any_address ? needle_dtype_size(spec.dtype) : kAlignment;
}

void Call::check_indices(const Input& input, const ArraySpec& spec) const {
  const int64_t low = spec.range->first.at(sizes_), high = spec.range->second.at(sizes_);
  std::string wrong;
  if (!indices_within(spec.dtype, input.given, input.bytes, low, high, &wrong))
    throw Failure(NEEDLE_ERROR_INPUT, "input " + quote(spec.name) + " has the index " + wrong +
                                          ", which is not within " + std::to_string(low) + ".." +
                                          std::to_string(high));
}

void Call::place_inputs() {
  const Function& main = program_->main();
  for (size_t i = 0; i < inputs_.size(); ++i)
    if (main.inputs[i].range) check_indices(inputs_[i], main.inputs[i]);
  for (size_t i = 0; i < inputs_.size(); ++i) {
    Input& input = inputs_[i];
    if (is_aligned(input.given, alignment_of(main.inputs[i]))) {
      point(input.window, input.given);
      continue;
    }
    if (!input.copy.has_value())
      input.copy = new_tensor<Aligned>(main.inputs[i].dtype, input.shape);
    copy_bytes(const_cast<char*>(data_of(*input.copy)), input.given, input.bytes);
    point(input.window, data_of(*input.copy));
  }
}

void Call::bind_weights() {
  const uint64_t generation = program_->generation_.load(std::memory_order_acquire);
  if (generation == generation_ && weights_ != nullptr) return;
  {
    const std::lock_guard<std::mutex> lock(program_->weights_mutex_);
    weights_ = program_->weights_;
    generation_ = program_->generation_;
  }
  if (weights_ == nullptr)
    throw Failure(NEEDLE_ERROR_WEIGHTS,
                  "this artifact carries no weights: call needle_load_weights first");
  arguments_.clear();
  for (const Input& input : inputs_) arguments_.emplace_back(input.window);
  if (into_.has_value())
    for (const Output& output : outputs_) arguments_.emplace_back(*output.window);
  for (const ffi::Tensor& each : program_->state_) arguments_.emplace_back(each);
  for (const ffi::Tensor& each : *weights_) arguments_.emplace_back(each);
}

void Call::run() {
  if (!prepared_) prepare();
  std::unique_lock<std::mutex> lock(program_->state_mutex_, std::defer_lock);
  if (program_->main().states > 0) {
    lock.lock();
    if (program_->state_.empty())
      throw Failure(NEEDLE_ERROR_WEIGHTS, "this artifact carries no state");
  }
  bind_weights();
  place_inputs();
  use_threads(program_->threads_);
  if (into_.has_value())
    run_into();
  else
    run_main();
}

void Call::run_into() {
  called(*into_, arguments_);
  for (Output& output : outputs_) {
    const void* written = output.window->GetDLTensorPtr()->data;
    if (output.given != nullptr && written != output.given)
      copy_bytes(output.given, written, output.bytes);
    output.keep(output.given != nullptr ? output.given : written);
  }
}

// Takes a result: to the caller's memory, or as the call's own.
void Call::keep(size_t number, const ffi::Tensor& result) {
  Output& output = outputs_[number];
  const char* data = data_of(result);
  if (ffi::GetDataSize(*result.GetDLTensorPtr()) != output.bytes)
    throw Failure(NEEDLE_ERROR_CODE, "the compiled code returned a result of another size");
  if (output.given != nullptr) {
    copy_bytes(output.given, data, output.bytes);
    output.keep(output.given);
    return;
  }
  bool shared = false;  // with memory that the next call changes
  for (const Input& input : inputs_) shared = shared || input.window.GetDLTensorPtr()->data == data;
  for (const ffi::Tensor& each : program_->state_) shared = shared || data_of(each) == data;
  if (shared) {
    ffi::Tensor copy = new_tensor<Aligned>(program_->main().outputs[number].dtype, output.shape);
    copy_bytes(const_cast<char*>(data_of(copy)), data, output.bytes);
    output.own = copy;
  } else {
    output.own = result;
  }
  output.keep(data_of(*output.own));
}

void Call::run_main() {
  const Function& main = program_->main();
  std::set<size_t> written;
  if (in_place_.has_value())
    for (const auto& [output, input] : main.in_place) written.insert(output);
  const std::vector<ffi::Tensor> results =
      tensors_of(called(in_place_.has_value() ? *in_place_ : *main_, arguments_));
  if (results.size() + written.size() != main.outputs.size())
    throw Failure(NEEDLE_ERROR_CODE, "the compiled code returned another number of results");
  size_t at = 0;
  for (size_t i = 0; i < main.outputs.size(); ++i) {
    if (written.count(i) != 0) continue;
    const ffi::Tensor& result = results[at++];
    if (i < outputs_.size()) {
      keep(i, result);
      continue;
    }
    const ffi::Tensor& state = program_->state_[i - outputs_.size()];
    copy_bytes(const_cast<char*>(data_of(state)), data_of(result),
               ffi::GetDataSize(*state.GetDLTensorPtr()));
  }
}

void Call::output(const std::string& name, needle_array* array) const {
  size_t index = 0;
  const ArraySpec& spec = program_->spec(NEEDLE_OUTPUTS, name, &index);
  const Output& output = outputs_[index];
  if (output.data == nullptr)
    throw Failure(NEEDLE_ERROR_INPUT, "output " + quote(name) + ": nothing was run yet");
  *array = {spec.name.c_str(),
            spec.dtype,
            static_cast<int32_t>(output.data_shape.size()),
            output.data_shape.data(),
            const_cast<void*>(output.data),
            output.data_bytes};
}

}  // namespace needle::capi
