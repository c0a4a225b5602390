#include "capi/program.h"

#include <algorithm>
#include <stdexcept>

#include "capi/failure.h"
#include "capi/features.h"
#include "capi/library.h"
#include "capi/tensors.h"
#include "capi/weights.h"
#include "threads/adopt.h"
#include "threads/thread_pool.h"

namespace needle::capi {

namespace {

// The virtual machine's allocators: the naive one asks the system each time; the pooled one keeps
// freed memory for the next allocation of the same size, so it is not used if sizes differ from
// call to call.
constexpr int kNaive = 1, kPooled = 2;

ffi::Tensor copied(const NamedArray& array) {
  ffi::Tensor tensor = new_tensor<Aligned>(array.dtype, array.shape);
  copy_bytes(const_cast<char*>(data_of(tensor)), array.data, array.bytes);
  return tensor;
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
  const std::vector<std::string> lacking = missing_features(manifest_.features);
  if (!lacking.empty())
    throw Failure(NEEDLE_ERROR_TARGET,
                  path + ": is compiled for " +
                      (manifest_.mcpu.empty() ? "another processor" : manifest_.mcpu) +
                      "; this one lacks " + joined(lacking));
  const ffi::Module module = load_code(library, path);
  const int cores = num_threads();
  threads_ = manifest_.threads > 0 ? std::min(manifest_.threads, cores) : cores;
  if (options.threads > 0) threads_ = std::min(threads_, options.threads);
  executable_ = module->GetFunction("vm_load_executable");
  if (!executable_.has_value())
    throw Failure(NEEDLE_ERROR_ARTIFACT, path + "/lib.so: was not compiled by needle");
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
  throw Failure(NEEDLE_ERROR_USAGE, std::to_string(kind) + " is not a needle_kind");
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
  const std::lock_guard<std::mutex> lock(machines_mutex_);
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
      throw Failure(NEEDLE_ERROR_ARTIFACT, path_ + "/lib.so has no function " + main().transform);
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
                                          " bytes, and the memory for it has " +
                                          std::to_string(bytes));
  const std::lock_guard<std::mutex> lock(state_mutex_);
  if (index >= state_.size()) throw Failure(NEEDLE_ERROR_WEIGHTS, "this artifact carries no state");
  copy_bytes(data, data_of(state_[index]), bytes);
}

}  // namespace needle::capi
