// Memory and order of work of the emulated devices.
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "threads.h"

namespace {

constexpr int kDevices = 2, kMultiprocessors = 4;
constexpr size_t kGranule = 512;
constexpr size_t kPage = 2 << 20;  // large pages, because their protection changes at each launch

// One operation runs at a time, from any thread.
std::recursive_mutex g_mutex;
using Lock = std::lock_guard<std::recursive_mutex>;

thread_local int t_device = 0;
thread_local std::string t_message;
int64_t g_fail_after = 0;
cudaError_t g_fail_with = cudaErrorLaunchFailure;

cudaError_t complain(cudaError_t error, std::string message) {
  t_message = "emulated: " + std::move(message);
  return error;
}

bool fails_now() { return g_fail_after > 0 && --g_fail_after == 0; }
cudaError_t injected() { return complain(g_fail_with, "a failure that a test asked for"); }

// For each stream, the work that is known to be done before the next work.
using Clock = std::map<const void*, int64_t>;

}  // namespace

struct CUstream_st {
  int device;
  int64_t ticks = 0;
  Clock done;
};
struct CUevent_st {
  int device;
  Clock done;
};

namespace {

struct Allocation {
  size_t bytes;
  const CUstream_st* stream = nullptr;  // the stream of the last work on it, and that work's number
  int64_t tick = 0;
};

struct Device {
  char* base = nullptr;
  size_t size, used = 0, in_use = 0;
  std::map<char*, Allocation> live;
  std::multimap<size_t, char*> free;
  CUstream_st legacy, per_thread;
};

Device* devices() {
  static Device* all = [] {
    auto* made = new Device[kDevices];
    const char* wanted = std::getenv("NEEDLE_EMULATED_MEMORY");
    const size_t size = wanted ? std::strtoull(wanted, nullptr, 10) : size_t{1} << 30;
    for (int i = 0; i < kDevices; ++i) {
      Device& d = made[i];
      d.size = (size + kPage - 1) / kPage * kPage;
      void* at = mmap(nullptr, d.size + kPage, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (at == MAP_FAILED) std::abort();
      const auto address = (reinterpret_cast<uintptr_t>(at) + kPage - 1) / kPage * kPage;
      d.base = reinterpret_cast<char*>(address);
      madvise(d.base, d.size, MADV_HUGEPAGE);  // without it, only slower
      d.legacy.device = d.per_thread.device = i;
    }
    return made;
  }();
  return all;
}

CUstream_st* stream_of(cudaStream_t stream) {
  if (stream == nullptr || stream == cudaStreamLegacy) return &devices()[t_device].legacy;
  return stream == cudaStreamPerThread ? &devices()[t_device].per_thread : stream;
}

// Makes the memory of a device accessible during its lifetime.
class Open {
 public:
  explicit Open(Device& d) : device_(d) { protect(PROT_READ | PROT_WRITE); }
  ~Open() { protect(PROT_NONE); }

 private:
  void protect(int how) {
    if (device_.used > 0) mprotect(device_.base, (device_.used + kPage - 1) / kPage * kPage, how);
  }
  Device& device_;
};

// The allocation that contains a pointer.
Allocation* find(Device& d, const void* pointer) {
  auto* p = static_cast<char*>(const_cast<void*>(pointer));
  auto after = d.live.upper_bound(p);
  if (after == d.live.begin()) return nullptr;
  auto at = std::prev(after);
  return p < at->first + at->second.bytes ? &at->second : nullptr;
}

// Checks that a stream may use memory: it belongs to the device, and the last work on it is done.
cudaError_t touch(const void* pointer, CUstream_st* s, int device) {
  Allocation* a = find(devices()[device], pointer);
  if (a == nullptr)
    return complain(cudaErrorIllegalAddress,
                    "the pointer is to no live memory of device " + std::to_string(device));
  if (a->stream != nullptr && a->stream != s) {
    auto known = s->done.find(a->stream);
    if (known == s->done.end() || known->second < a->tick)
      return complain(
          cudaErrorIllegalAddress,
          "memory is used on a stream that has not waited for the work of another stream on it");
  }
  a->stream = s;
  a->tick = s->ticks + 1;
  return cudaSuccess;
}

void finish(CUstream_st* s) { s->done[s] = ++s->ticks; }

void join(Clock* into, const Clock& other) {
  for (const auto& [stream, tick] : other) {
    int64_t& known = (*into)[stream];
    if (known < tick) known = tick;
  }
}

}  // namespace

namespace emulated {

void fail(int64_t after, cudaError_t with) {
  Lock lock(g_mutex);
  g_fail_after = after;
  g_fail_with = with;
}

cudaError_t run(dim3 grid, dim3 block, void (*thread)(void*), void* context, cudaStream_t stream,
                const void* const* pointers, int count) {
  Lock lock(g_mutex);
  if (fails_now()) return injected();
  const int64_t threads = int64_t{block.x} * block.y * block.z;
  if (threads < 1 || threads > 1024 || grid.x < 1 || grid.x > 0x7fffffffu || grid.y < 1 ||
      grid.y > 65535 || grid.z < 1 || grid.z > 65535)
    return complain(cudaErrorInvalidConfiguration, "the grid or block is out of range");
  CUstream_st* s = stream_of(stream);
  if (s->device != t_device)
    return complain(cudaErrorInvalidResourceHandle, "the stream is of another device");
  for (int i = 0; i < count; ++i)
    if (pointers[i] != nullptr)
      if (cudaError_t error = touch(pointers[i], s, t_device); error != cudaSuccess) return error;
  Open memory(devices()[t_device]);
  blockDim = block;
  gridDim = grid;
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        blockIdx = dim3(x, y, z);
        if (!run_block(static_cast<int>(threads), thread, context))
          return complain(cudaErrorLaunchFailure, "threads of a block wait for others that ended");
      }
  finish(s);
  return cudaSuccess;
}

}  // namespace emulated

const char* cudaGetErrorString(cudaError_t error) {
  if (error == cudaErrorMemoryAllocation) return "out of memory";
  return t_message.empty() ? "an error" : t_message.c_str();
}

cudaError_t cudaGetLastError() { return cudaSuccess; }

cudaError_t cudaGetDeviceCount(int* count) {
  *count = kDevices;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= kDevices) return complain(cudaErrorInvalidDevice, "no such device");
  t_device = device;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = t_device;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = kMultiprocessors;
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  // All work is done: later work may access anything.
  Lock lock(g_mutex);
  for (auto& [at, allocation] : devices()[t_device].live) allocation.stream = nullptr;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  Lock lock(g_mutex);
  if (fails_now()) return injected();
  Device& d = devices()[t_device];
  const size_t size = (bytes + kGranule - 1) / kGranule * kGranule;
  char* at = nullptr;
  if (auto kept = d.free.find(size); kept != d.free.end()) {
    at = kept->second;
    d.free.erase(kept);
  } else if (size <= d.size - d.used) {
    at = d.base + d.used;
    d.used += size;
  } else {
    return cudaErrorMemoryAllocation;
  }
  d.live[at] = Allocation{bytes};
  d.in_use += size;
  Open memory(d);
  std::memset(at, 0xd5, size);  // a pattern that nobody mistakes for a result
  *pointer = at;
  return cudaSuccess;
}

cudaError_t cudaFree(void* pointer) {
  Lock lock(g_mutex);
  for (int i = 0; i < kDevices; ++i) {
    Device& d = devices()[i];
    auto found = d.live.find(static_cast<char*>(pointer));
    if (found == d.live.end()) continue;
    const size_t size = (found->second.bytes + kGranule - 1) / kGranule * kGranule;
    d.in_use -= size;
    d.live.erase(found);
    d.free.emplace(size, static_cast<char*>(pointer));
    if (d.live.empty()) {
      d.free.clear();
      d.used = 0;
    }
    return cudaSuccess;
  }
  return complain(cudaErrorInvalidValue, "freed memory that is not allocated");
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  Lock lock(g_mutex);
  const Device& d = devices()[t_device];
  *total = d.size;
  *free = d.size - d.in_use;
  return cudaSuccess;
}

cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  *pointer = std::malloc(bytes);
  return *pointer != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaFreeHost(void* pointer) {
  std::free(pointer);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  Lock lock(g_mutex);
  if (fails_now()) return injected();
  CUstream_st* s = stream_of(stream);
  if (kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice)
    if (cudaError_t error = touch(to, s, s->device); error != cudaSuccess) return error;
  if (kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice)
    if (cudaError_t error = touch(from, s, s->device); error != cudaSuccess) return error;
  Open memory(devices()[s->device]);
  std::memmove(to, from, bytes);
  finish(s);
  return cudaSuccess;
}

cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device,
                                size_t bytes, cudaStream_t stream) {
  Lock lock(g_mutex);
  if (fails_now()) return injected();
  CUstream_st* s = stream_of(stream);
  if (cudaError_t error = touch(to, s, to_device); error != cudaSuccess) return error;
  if (cudaError_t error = touch(from, s, from_device); error != cudaSuccess) return error;
  Open target(devices()[to_device]), source(devices()[from_device]);
  std::memmove(to, from, bytes);
  finish(s);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* to, int byte, size_t bytes, cudaStream_t stream) {
  Lock lock(g_mutex);
  if (fails_now()) return injected();
  CUstream_st* s = stream_of(stream);
  if (cudaError_t error = touch(to, s, s->device); error != cudaSuccess) return error;
  Open memory(devices()[s->device]);
  std::memset(to, byte, bytes);
  finish(s);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new CUstream_st{t_device, 0, {}};
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  // The host has seen that the work is done: later work on any stream comes after it.
  Lock lock(g_mutex);
  const CUstream_st* s = stream_of(stream);
  for (int i = 0; i < kDevices; ++i)
    for (auto& [at, allocation] : devices()[i].live)
      if (allocation.stream == s) allocation.stream = nullptr;
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  Lock lock(g_mutex);
  join(&stream_of(stream)->done, event->done);
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st{t_device, {}};
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  Lock lock(g_mutex);
  CUstream_st* s = stream_of(stream);
  if (s->device != event->device)
    return complain(cudaErrorInvalidResourceHandle, "the event is of another device");
  event->done = s->done;
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
