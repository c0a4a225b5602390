// The CUDA driver on a host without a GPU, for tests. It has the functions that needle_tvm's
// cuda_driver.py calls, on top of needle's emulated CUDA runtime. A graph keeps the captured work
// with the addresses of that time, and repeats it at each launch.
#include <chrono>
#include <map>
#include <mutex>
#include <vector>

#include "graphs.h"

namespace {

constexpr int kSuccess = 0, kInvalidValue = 1, kInvalidHandle = 400, kUnsupported = 900;
constexpr unsigned kNonBlocking = 1;
constexpr int kRelaxed = 2;

struct Graph {
  std::vector<emulated::Work> work;
  bool valid = true;
};

std::mutex g_mutex;  // guards the variables below
std::map<cudaStream_t, Graph*> g_captures;

Graph* capture_of(cudaStream_t stream) {
  std::lock_guard<std::mutex> lock(g_mutex);
  auto found = g_captures.find(stream);
  return found == g_captures.end() ? nullptr : found->second;
}

cudaStream_t stream_of(void* handle) { return static_cast<cudaStream_t>(handle); }

int copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, void* stream) {
  Graph* graph = capture_of(stream_of(stream));
  if (graph != nullptr && kind != cudaMemcpyDeviceToDevice) {
    graph->valid = false;  // the host's memory may be gone at a replay
    return kUnsupported;
  }
  return emulated::submit(
      stream_of(stream), [=](cudaStream_t s) { return cudaMemcpyAsync(to, from, bytes, kind, s); });
}

}  // namespace

namespace emulated {

bool captured(cudaStream_t stream) {
  Graph* graph = capture_of(stream);
  if (graph != nullptr) graph->valid = false;
  return graph != nullptr;
}

cudaError_t submit(cudaStream_t stream, Work work) {
  Graph* graph = capture_of(stream);
  if (graph == nullptr) return work(stream);
  graph->work.push_back(std::move(work));
  return cudaSuccess;
}

}  // namespace emulated

extern "C" {

int cuInit(unsigned) { return kSuccess; }
int cuDeviceGet(int* device, int index) {
  *device = index;
  return kSuccess;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = reinterpret_cast<void*>(static_cast<intptr_t>(device) + 1);
  return kSuccess;
}
int cuCtxSetCurrent(void* context) {
  return cudaSetDevice(static_cast<int>(reinterpret_cast<intptr_t>(context) - 1));
}
int cuStreamCreate(void** stream, unsigned flags) {
  cudaStream_t made = nullptr;
  const int error = cudaStreamCreateWithFlags(&made, flags);
  *stream = made;
  return flags == kNonBlocking ? error : kInvalidValue;
}
int cuStreamSynchronize(void* stream) {
  if (emulated::captured(stream_of(stream))) return kUnsupported;
  return cudaStreamSynchronize(stream_of(stream));
}
int cuStreamDestroy_v2(void*) { return kSuccess; }  // the runtime keeps its streams
int cuStreamBeginCapture_v2(void* stream, int mode) {
  if (stream == nullptr || mode != kRelaxed) return kUnsupported;
  std::lock_guard<std::mutex> lock(g_mutex);
  return g_captures.emplace(stream_of(stream), new Graph).second ? kSuccess : kInvalidValue;
}
int cuStreamEndCapture(void* stream, void** graph) {
  std::lock_guard<std::mutex> lock(g_mutex);
  auto found = g_captures.find(stream_of(stream));
  if (found == g_captures.end()) return kInvalidValue;
  *graph = found->second;
  g_captures.erase(found);
  if (static_cast<Graph*>(*graph)->valid) return kSuccess;
  delete static_cast<Graph*>(*graph);
  *graph = nullptr;
  return kUnsupported;
}
int cuGraphGetNodes(void* graph, void**, size_t* count) {
  *count = static_cast<Graph*>(graph)->work.size();
  return kSuccess;
}
int cuGraphInstantiateWithFlags(void** executable, void* graph, unsigned long long) {
  *executable = new Graph(*static_cast<Graph*>(graph));
  return kSuccess;
}
int cuGraphDestroy(void* graph) {
  delete static_cast<Graph*>(graph);
  return kSuccess;
}
int cuGraphLaunch(void* executable, void* stream) {
  if (executable == nullptr) return kInvalidHandle;
  for (const emulated::Work& work : static_cast<Graph*>(executable)->work)
    if (cudaError_t error = emulated::submit(stream_of(stream), work); error != cudaSuccess)
      return error;
  return kSuccess;
}
int cuGraphExecDestroy(void* executable) {
  delete static_cast<Graph*>(executable);
  return kSuccess;
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, void* stream) {
  return copy(reinterpret_cast<void*>(to), from, bytes, cudaMemcpyHostToDevice, stream);
}
int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, void* stream) {
  return copy(to, reinterpret_cast<void*>(from), bytes, cudaMemcpyDeviceToHost, stream);
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void* stream) {
  return copy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes,
              cudaMemcpyDeviceToDevice, stream);
}
// Events have the host's time, since work is done when it is submitted. For the same reason a
// stream cannot wait for a function that waits for later submissions: it is not called.
int cuEventCreate(void** event, unsigned) {
  *event = new double(0);
  return kSuccess;
}
int cuEventRecord(void* event, void*) {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  *static_cast<double*>(event) = std::chrono::duration<double, std::milli>(now).count();
  return kSuccess;
}
int cuEventSynchronize(void*) { return kSuccess; }
int cuEventElapsedTime(float* milliseconds, void* start, void* end) {
  *milliseconds = static_cast<float>(*static_cast<double*>(end) - *static_cast<double*>(start));
  return kSuccess;
}
int cuLaunchHostFunc(void*, void (*)(void*), void*) { return kSuccess; }
int cuGetErrorName(int error, const char** name) {
  *name = error == kUnsupported ? "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
                                : cudaGetErrorString(static_cast<cudaError_t>(error));
  return kSuccess;
}

}  // extern "C"
