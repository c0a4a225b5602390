// The part of the CUDA runtime that src/cuda uses, for hosts without a GPU. The same sources are
// compiled as C++ with this header in place of NVIDIA's. It is for tests, and slow.
//
// Work is done when it is submitted, so streams and events only keep records. It is an error to
// access memory on one stream without waiting for the last work on another stream, or to pass freed
// memory, host memory or another device's memory. Only kernels and copies can read or write device
// memory; other accesses crash the process. There are two devices.
//
// A block's threads are fibers (see threads.cc), so barriers and shuffles behave as on a GPU.
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include <tuple>
#include <type_traits>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __forceinline__ inline
#define __launch_bounds__(...)

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorNotReady = 600,
  cudaErrorIllegalAddress = 700,
  cudaErrorLaunchFailure = 719
};
enum cudaMemcpyKind {
  cudaMemcpyHostToHost,
  cudaMemcpyHostToDevice,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice
};
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount = 16 };

struct CUstream_st;
struct CUevent_st;
using cudaStream_t = CUstream_st*;
using cudaEvent_t = CUevent_st*;
#define cudaStreamLegacy (reinterpret_cast<cudaStream_t>(1))
#define cudaStreamPerThread (reinterpret_cast<cudaStream_t>(2))
constexpr unsigned cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2;

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};

// Indices of the running thread.
extern dim3 threadIdx, blockIdx, blockDim, gridDim;

const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaMalloc(void** pointer, size_t bytes);
cudaError_t cudaFree(void* pointer);
cudaError_t cudaMemGetInfo(size_t* free, size_t* total);
cudaError_t cudaMallocHost(void** pointer, size_t bytes);
cudaError_t cudaFreeHost(void* pointer);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device,
                                size_t bytes, cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* to, int byte, size_t bytes, cudaStream_t stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);

void __syncthreads();
void __syncwarp(unsigned mask = 0xffffffffu);

namespace emulated {

// The value of another lane of the warp, in 32 or 64 bits, and the running lane's number.
uint64_t shuffle(uint64_t bits, int lane);
int lane();

// Runs `thread(context)` for every thread of every block.
cudaError_t run(dim3 grid, dim3 block, void (*thread)(void*), void* context, cudaStream_t stream,
                const void* const* pointers, int count);

// Makes the `after`th call to the runtime from now fail (1: the next call); 0 for none. Only calls
// that may fail on a GPU count: memory, launches, copies.
void fail(int64_t after, cudaError_t with);

template <class T>
const void* pointer_of(const T& argument) {
  if constexpr (std::is_pointer_v<T>) return argument;
  return nullptr;
}

template <class... P, size_t... i>
cudaError_t launch(void (*kernel)(P...), dim3 grid, dim3 block, void** arguments,
                   cudaStream_t stream, std::index_sequence<i...>) {
  using Arguments = std::tuple<std::decay_t<P>...>;
  struct Call {
    void (*kernel)(P...);
    Arguments arguments;
  } call{kernel, Arguments(*static_cast<std::decay_t<P>*>(arguments[i])...)};
  const void* pointers[] = {pointer_of(std::get<i>(call.arguments))..., nullptr};
  return run(
      grid, block,
      [](void* context) {
        auto* c = static_cast<Call*>(context);
        std::apply(c->kernel, c->arguments);
      },
      &call, stream, pointers, static_cast<int>(sizeof...(P)));
}

}  // namespace emulated

template <class... P>
cudaError_t cudaLaunchKernel(void (*kernel)(P...), dim3 grid, dim3 block, void** arguments, size_t,
                             cudaStream_t stream) {
  return emulated::launch(kernel, grid, block, arguments, stream, std::index_sequence_for<P...>());
}

// Needs no lock: blocks run one after another, and one thread of a block at a time.
template <class T, class U>
T atomicAdd(T* at, U value) {
  const T before = *at;
  *at = static_cast<T>(before + value);
  return before;
}
