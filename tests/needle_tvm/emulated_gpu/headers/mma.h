// CUDA's warp matrix functions (CUDA C++ Programming Guide, "Warp Matrix Functions"), for floating
// types. The guide leaves open which thread holds which elements of a fragment: here thread t of
// the warp holds every 32nd element from number t on, counted row by row.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "warp.h"

namespace nvcuda {
namespace wmma {

struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;
enum layout_t { mem_row_major, mem_col_major };
namespace precision {
struct tf32;
}

inline float __float_to_tf32(float x) { return needle::emulated::to_tf32(x); }

template <class Use, int m, int n, int k, class T, class Layout = void>
class fragment {
  static constexpr bool tf32 = std::is_same_v<T, precision::tf32>;
  static constexpr bool square = m == 16 && n == 16;
  static_assert((k == 8 && square && (tf32 || std::is_same_v<Use, accumulator>)) ||
                    (k == 16 && !tf32 && (square || (m == 32 && n == 8) || (m == 8 && n == 32))),
                "CUDA has no fragments of this shape");

 public:
  using element_type = std::conditional_t<tf32, float, T>;
  static constexpr int rows = std::is_same_v<Use, matrix_b> ? k : m;
  static constexpr int columns = std::is_same_v<Use, matrix_a> ? k : n;
  static constexpr int num_elements = rows * columns / 32;
  element_type x[num_elements];
};

namespace detail {

using needle::emulated::refuse;
using needle::emulated::Shown;

template <class T, class U>
float operand(U x) {
  if constexpr (std::is_same_v<T, precision::tf32>)
    return needle::emulated::read_as_tf32(x);
  else
    return static_cast<float>(x);
}

// Calls of(element of the fragment, place in memory) for each element of this thread.
template <class F, class Memory, class Of>
void move(F& fragment, Memory* memory, unsigned stride, bool by_rows, Of of) {
  if (reinterpret_cast<uintptr_t>(memory) % 32 != 0)
    refuse("a fragment's memory must be aligned to 32 bytes");
  if (stride * sizeof(*memory) % 16 != 0)
    refuse("a fragment's rows must lie a multiple of 16 bytes apart");
  Shown pointers(memory);
  if (!pointers.agree()) refuse("the threads of a warp give different addresses of a fragment");
  for (int e = 0; e < F::num_elements; ++e) {
    const int at = e * 32 + emulated::lane(), row = at / F::columns, column = at % F::columns;
    of(fragment.x[e], memory[by_rows ? row * stride + column : column * stride + row]);
  }
  pointers.done();
}

}  // namespace detail

template <class F, class T>
void fill_fragment(F& fragment, T value) {
  std::fill_n(fragment.x, F::num_elements, typename F::element_type(value));
}

template <class Use, int m, int n, int k, class T, class Layout, class Memory>
void load_matrix_sync(fragment<Use, m, n, k, T, Layout>& to, const Memory* from, unsigned stride) {
  detail::move(to, from, stride, std::is_same_v<Layout, row_major>,
               [](auto& element, const Memory& place) { element = place; });
}
template <int m, int n, int k, class T>
void load_matrix_sync(fragment<accumulator, m, n, k, T>& to, const T* from, unsigned stride,
                      layout_t layout) {
  detail::move(to, from, stride, layout == mem_row_major,
               [](auto& element, const T& place) { element = place; });
}

template <int m, int n, int k, class T>
void store_matrix_sync(T* to, const fragment<accumulator, m, n, k, T>& from, unsigned stride,
                       layout_t layout) {
  detail::move(from, to, stride, layout == mem_row_major,
               [](const auto& element, T& place) { place = element; });
}

template <int m, int n, int k, class T, class Sum, class LayoutA, class LayoutB>
void mma_sync(fragment<accumulator, m, n, k, Sum>& d,
              const fragment<matrix_a, m, n, k, T, LayoutA>& a,
              const fragment<matrix_b, m, n, k, T, LayoutB>& b,
              const fragment<accumulator, m, n, k, Sum>& c) {
  using C = fragment<accumulator, m, n, k, Sum>;
  const auto own = std::make_pair(&a, &b);
  const detail::Shown warp(&own);
  Sum sums[C::num_elements];
  for (int e = 0; e < C::num_elements; ++e) {
    const int at = e * 32 + emulated::lane(), row = at / n, column = at % n;
    float sum = static_cast<float>(c.x[e]);
    for (int t = 0; t < k; ++t) {
      const int left = row * k + t, right = t * n + column;
      sum += detail::operand<T>(warp.of<decltype(own)>(left % 32)->first->x[left / 32]) *
             detail::operand<T>(warp.of<decltype(own)>(right % 32)->second->x[right / 32]);
    }
    sums[e] = Sum(sum);
  }
  warp.done();
  std::copy_n(sums, C::num_elements, d.x);
}

}  // namespace wmma
}  // namespace nvcuda
