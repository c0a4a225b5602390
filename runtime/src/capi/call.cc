// Calls of a program: the memory of their inputs and outputs, and the checks before each run.
#include <algorithm>
#include <set>
#include <stdexcept>

#include "capi/failure.h"
#include "capi/indices.h"
#include "capi/program.h"
#include "capi/tensors.h"
#include "threads/adopt.h"

namespace needle::capi {

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
    throw Failure(NEEDLE_ERROR_ARTIFACT, program_->path_ + "/lib.so has no function main");
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
      throw Failure(NEEDLE_ERROR_USAGE,
                    "input " + quote(name) + ": ndim is negative, or shape is a null pointer");
    extents.assign(shape, shape + ndim);
  } else if (std::count(extents.begin(), extents.end(), -1) > 0) {
    throw Failure(NEEDLE_ERROR_INPUT,
                  "input " + quote(name) + " is " + describe(spec) +
                      ", with sizes that may differ from call to call: pass its shape");
  }
  bool fits = extents.size() == spec.described.size();
  for (size_t i = 0; fits && i < extents.size(); ++i)
    fits = extents[i] >= 0 && (spec.described[i] == -1 || spec.described[i] == extents[i]);
  if (!fits)
    throw Failure(NEEDLE_ERROR_INPUT, "input " + quote(name) + " is " +
                                          describe(spec.dtype, extents) +
                                          ", but the model was compiled for " + describe(spec));
  if (!byte_size(spec.dtype, extents, &wanted) || wanted != bytes)
    throw Failure(NEEDLE_ERROR_INPUT,
                  "input " + quote(name) + ": " + describe(spec.dtype, extents) + " has " +
                      std::to_string(wanted) + " bytes, and the memory given has " +
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
                                            " bytes, and the memory for it has " +
                                            std::to_string(bytes));
  }
  outputs_[index].given = data;
  outputs_[index].given_bytes = bytes;
  prepared_ = false;
}

// Checks all inputs and outputs together. Later runs repeat the check only if an input or output
// has been set again.
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
                        " bytes, and the memory for it has " + std::to_string(output.given_bytes));
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
  weights_.reset();  // so that bind_weights rebuilds the arguments
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

// Copies a result to the caller's memory, or keeps it in the call if the caller gave none.
void Call::keep(size_t number, const ffi::Tensor& result) {
  Output& output = outputs_[number];
  const char* data = data_of(result);
  if (ffi::GetDataSize(*result.GetDLTensorPtr()) != output.bytes)
    throw Failure(NEEDLE_ERROR_CODE, "the compiled code returned a result of the wrong size");
  if (output.given != nullptr) {
    copy_bytes(output.given, data, output.bytes);
    output.keep(output.given);
    return;
  }
  bool shared = false;  // whether the next call changes the memory of the result
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
    throw Failure(NEEDLE_ERROR_CODE, "the compiled code returned the wrong number of results");
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
    throw Failure(NEEDLE_ERROR_INPUT, "output " + quote(name) + ": nothing has been run yet");
  *array = {spec.name.c_str(),
            spec.dtype,
            static_cast<int32_t>(output.data_shape.size()),
            output.data_shape.data(),
            const_cast<void*>(output.data),
            output.data_bytes};
}

}  // namespace needle::capi
