#include "cuda/runtime.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <stdexcept>
#include <vector>

#include "common/blocks.h"
#include "common/integers.h"

namespace needle {
namespace cuda {

namespace {

// One mutex for all devices, since work may concern two of them. It is never destroyed, and neither
// are the other static objects of this file: buffers may be freed while the process exits.
std::recursive_mutex& order_mutex() {
  static auto* mutex = new std::recursive_mutex;
  return *mutex;
}

struct Streams {
  std::mutex mutex;
  std::vector<Stream*> idle;
  std::vector<cudaEvent_t> events;
  Stream legacy{0, nullptr};
};

Streams& streams_of(int device) {
  static Streams* all = [] {
    auto* made = new Streams[kMaxDevices];
    for (int i = 0; i < kMaxDevices; ++i) made[i].legacy = {i, cudaStreamLegacy};
    return made;
  }();
  return all[device];
}

thread_local Stream* t_current[kMaxDevices];

// Whether an error makes all further calls of the process fail.
bool lasts(cudaError_t status) {
  return status == cudaErrorIllegalAddress || status == cudaErrorLaunchFailure;
}

std::string explained(cudaError_t status) {
  std::string text = cudaGetErrorString(status);
  if (lasts(status))
    text +=
        " (the device may stay unusable until the process ends; an earlier kernel may be its "
        "cause)";
  return text;
}

}  // namespace

void check(cudaError_t status, const std::string& doing) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // so that the next call does not report it again
  throw CudaError("cuda: " + doing + ": " + explained(status));
}

int device_count() {
  static const int count = [] {
    int found = 0;
    if (cudaGetDeviceCount(&found) != cudaSuccess) {
      cudaGetLastError();
      return 0;
    }
    return std::min(found, kMaxDevices);
  }();
  return count;
}

int multiprocessors(int device) {
  static std::atomic<int> known[kMaxDevices];
  int found = known[device].load(std::memory_order_relaxed);
  if (found == 0) {
    check(cudaDeviceGetAttribute(&found, cudaDevAttrMultiProcessorCount, device),
          "asking how many multiprocessors there are");
    known[device].store(found, std::memory_order_relaxed);
  }
  return found;
}

OnDevice::OnDevice(int device) {
  check(cudaGetDevice(&before_), "asking for the current device");
  if (before_ != device) check(cudaSetDevice(device), "choosing device " + std::to_string(device));
}

OnDevice::~OnDevice() { cudaSetDevice(before_); }

Stream* default_stream(int device) { return &streams_of(device).legacy; }

Stream* take_stream(int device) {
  Streams& s = streams_of(device);
  {
    std::lock_guard<std::mutex> lock(s.mutex);
    if (!s.idle.empty()) {
      Stream* stream = s.idle.back();
      s.idle.pop_back();
      return stream;
    }
  }
  const OnDevice on(device);
  auto stream = std::make_unique<Stream>(Stream{device, nullptr});
  check(cudaStreamCreateWithFlags(&stream->handle, cudaStreamNonBlocking), "making a stream");
  return stream.release();
}

void give_stream(Stream* stream) {
  Streams& s = streams_of(stream->device);
  std::lock_guard<std::mutex> lock(s.mutex);
  s.idle.push_back(stream);
}

Stream* current_stream(int device) {
  Stream* current = t_current[device];
  return current != nullptr ? current : default_stream(device);
}

Stream* set_current_stream(int device, Stream* stream) {
  return std::exchange(t_current[device], stream);
}

cudaStream_t foreign_stream(int64_t number) {
  if (number == 1) return cudaStreamLegacy;
  if (number == 2) return cudaStreamPerThread;
  return reinterpret_cast<cudaStream_t>(static_cast<intptr_t>(number));
}

Mark::Mark(int device, cudaStream_t stream) : device_(device) {
  Streams& s = streams_of(device);
  const OnDevice on(device);
  {
    std::lock_guard<std::mutex> lock(s.mutex);
    if (!s.events.empty()) {
      event_ = s.events.back();
      s.events.pop_back();
    }
  }
  if (event_ == nullptr)
    needle::cuda::check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming),
                        "making an event");
  if (const cudaError_t status = cudaEventRecord(event_, stream); status != cudaSuccess) {
    give_back();
    needle::cuda::check(status, "recording an event");
  }
}

void Mark::give_back() noexcept {
  if (event_ == nullptr) return;
  Streams& s = streams_of(device_);
  std::lock_guard<std::mutex> lock(s.mutex);
  try {
    s.events.push_back(event_);
  } catch (const std::bad_alloc&) {
    // the event is lost
  }
  event_ = nullptr;
}

bool Mark::reached() const {
  return event_ == nullptr || cudaEventQuery(event_) != cudaErrorNotReady;
}

void Mark::wait() const {
  if (event_ != nullptr) needle::cuda::check(cudaEventSynchronize(event_), "waiting for an event");
}

void wait_for(const Stream& waiting, const Stream& other) {
  const Mark mark(other.device, other.handle);
  const OnDevice on(waiting.device);
  check(cudaStreamWaitEvent(waiting.handle, mark.event(), 0), "making a stream wait for another");
}

void synchronize(int device) {
  const OnDevice on(device);
  check(cudaDeviceSynchronize(), "waiting for device " + std::to_string(device));
}

namespace {

Stream* stream_for(std::initializer_list<const View*> touched) {
  for (const View* v : touched)
    if (v != nullptr && v->device() != kHost) return current_stream(v->device());
  throw std::logic_error("cuda: none of the arrays of this work is on a device");
}

}  // namespace

Work::Work(const char* what, std::initializer_list<const View*> touched)
    : what_(what), stream_(stream_for(touched)), on_(stream_->device), lock_(order_mutex()) {
  for (const View* v : touched) {
    if (v == nullptr) continue;
    if (count_ < kMost) touched_[count_++] = v;
    if (v->device() != kHost) order(*v->buffer());
  }
}

void Work::order(const Buffer& buffer) {
  auto* last = static_cast<Stream*>(buffer.stream().load(std::memory_order_relaxed));
  if (last == stream_) return;
  if (last != nullptr) wait_for(*stream_, *last);
  buffer.stream().store(stream_, std::memory_order_relaxed);
}

void Work::fail(cudaError_t status) const {
  std::string arrays;
  for (int i = 0; i < count_; ++i)
    arrays +=
        std::string(i ? ", " : "") + name(touched_[i]->dtype()) + " " + touched_[i]->shape().str();
  needle::cuda::check(status, std::string(what_) + " of " + arrays);
  throw std::logic_error("cuda: no error");
}

Scratch::Scratch(const char* what, int device, std::initializer_list<int64_t> factors)
    : bytes_(product(factors)), device_(device) {
  try {
    data_ = acquire_block(bytes_, device_, &stream_);
  } catch (const std::bad_alloc&) {
    throw OutOfMemory(std::string(what) + ": needs " + std::to_string(bytes_) +
                      " bytes of scratch memory, " + out_of_memory_note(device_));
  }
}

Scratch::~Scratch() { release_block(data_, bytes_, device_, stream_); }

Grid grid_for(int device, int64_t n, int64_t per) {
  const int64_t most = int64_t{multiprocessors(device)} * 16;
  return Grid{static_cast<unsigned>(std::clamp<int64_t>(ceil_div(n, per), 1, most))};
}

}  // namespace cuda
}  // namespace needle
