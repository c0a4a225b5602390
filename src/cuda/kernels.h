// Code shared by kernels: element types, strided layouts, packs of adjacent elements, and the
// choice of a kernel by dtype.
#pragma once

#define NEEDLE_ISA cuda
#define NEEDLE_ON_CUDA
#include "common/functors.h"

#include <type_traits>

#include "common/device.h"
#include "cuda/runtime.h"

namespace needle {
namespace cuda {

constexpr int kThreads = 256;

// Marks loops that gain nothing from unrolling; unrolled, they would make the many kernels several
// times as long.
#ifdef __CUDA_ARCH__
#define NEEDLE_ROLLED _Pragma("unroll 1")
#else
#define NEEDLE_ROLLED
#endif

// The strided layouts of N operands.
template <int N>
struct Layout {
  int ndim;
  bool few;  // whether 32-bit integers, which divide faster, can number all elements
  int64_t total;
  int64_t shape[kMaxDims];
  int64_t strides[N][kMaxDims];

  explicit Layout(const Loop<N>& loop)
      : ndim(loop.ndim), few(loop.total <= UINT32_MAX), total(loop.total) {
    for (int d = 0; d < ndim; ++d) {
      shape[d] = loop.shape[d];
      for (int k = 0; k < N; ++k) strides[k][d] = loop.strides[k][d];
    }
  }

  NEEDLE_HD void locate(int64_t index, int64_t (&offset)[N]) const {
    for (int k = 0; k < N; ++k) offset[k] = 0;
    if (few)
      walk<uint32_t>(static_cast<uint32_t>(index), offset);
    else
      walk<int64_t>(index, offset);
  }

 private:
  template <class I>
  NEEDLE_HD void walk(I index, int64_t (&offset)[N]) const {
    NEEDLE_ROLLED
    for (int d = ndim - 1; d > 0; --d) {
      const I extent = static_cast<I>(shape[d]), rest = index / extent;
      const int64_t at = index - rest * extent;
      for (int k = 0; k < N; ++k) offset[k] += at * strides[k][d];
      index = rest;
    }
    for (int k = 0; k < N; ++k) offset[k] += static_cast<int64_t>(index) * strides[k][0];
  }
};

// Adjacent elements that are read and written at once.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T at[N];
};

// Elements per pack of a kernel that reads In and writes Out: at most 16 bytes of the wider type.
template <class In, class Out>
constexpr int kPackOf = sizeof(In) >= 8 || sizeof(Out) >= 8   ? 2
                        : sizeof(In) >= 4 || sizeof(Out) >= 4 ? 4
                                                              : 8;

template <class T, int N>
bool aligned(const T* p) {
  return reinterpret_cast<uintptr_t>(p) % sizeof(Pack<T, N>) == 0;
}

NEEDLE_HD inline int64_t grid_index() {
#if defined(__CUDA_ARCH__) || !defined(__CUDACC__)
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
#else
  return 0;
#endif
}
NEEDLE_HD inline int64_t grid_step() {
#if defined(__CUDA_ARCH__) || !defined(__CUDACC__)
  return static_cast<int64_t>(gridDim.x) * blockDim.x;
#else
  return 1;
#endif
}

template <class S>
struct Type {
  using type = S;
};

// Calls fn(Type<storage type>) for a dtype.
template <class F>
decltype(auto) with_floating(DType t, F&& fn) {
  switch (t) {
    case DType::float64:
      return fn(Type<double>());
    case DType::float16:
      return fn(Type<Float16>());
    case DType::bfloat16:
      return fn(Type<Bfloat16>());
    default:
      return fn(Type<float>());
  }
}
template <class F>
decltype(auto) with_integer(DType t, F&& fn) {
  if (t == DType::int32) return fn(Type<int32_t>());
  return fn(Type<int64_t>());
}
template <class F>
decltype(auto) with_integral(DType t, F&& fn) {
  if (t == DType::boolean) return fn(Type<Bool>());
  return with_integer(t, fn);
}
template <class F>
decltype(auto) with_number(DType t, F&& fn) {
  if (t == DType::int32 || t == DType::int64) return with_integer(t, fn);
  return with_floating(t, fn);
}
template <class F>
decltype(auto) with_any(DType t, F&& fn) {
  if (t == DType::boolean) return fn(Type<Bool>());
  return with_number(t, fn);
}
template <class F>
decltype(auto) with_small(DType t, F&& fn) {
  switch (t) {
    case DType::int8:
      return fn(Type<int8_t>());
    case DType::uint8:
      return fn(Type<uint8_t>());
    case DType::int16:
      return fn(Type<int16_t>());
    default:
      return fn(Type<uint16_t>());
  }
}
// Calls fn(Type<float or double>), the compute type of whole layers.
template <class F>
decltype(auto) with_real(DType t, F&& fn) {
  if (t == DType::float64) return fn(Type<double>());
  return fn(Type<float>());
}
// Calls fn(Type<unsigned integer of the dtype's size>), for copies of bits.
template <class F>
decltype(auto) with_bits(DType t, F&& fn) {
  switch (itemsize(t)) {
    case 1:
      return fn(Type<uint8_t>());
    case 2:
      return fn(Type<uint16_t>());
    case 4:
      return fn(Type<uint32_t>());
    default:
      return fn(Type<uint64_t>());
  }
}

template <class S>
S* data_of(const View& v) {
  return reinterpret_cast<S*>(v.data());
}

// An operand that is a view or, if `p` is null, a single value.
template <class S>
struct Operand1 {
  const S* p;
  S value;

  explicit Operand1(const Input& x) : p(nullptr) {
    if (x.view != nullptr) {
      p = data_of<const S>(*x.view);
      value = S();
    } else {
      __builtin_memcpy(&value, &x.scalar, sizeof value);
    }
  }
};

}  // namespace cuda
}  // namespace needle
