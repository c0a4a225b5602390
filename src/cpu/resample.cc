// Weighted sums of a few elements along one axis.
#include <algorithm>
#include <string>

#include "common/functions.h"
#include "cpu/lines.h"
#include "cpu/scan.h"

namespace needle {

namespace {

constexpr int64_t kRows = 4;  // contiguous lines that are processed side by side

// y[j] = the sum over t of w[t, j] * x[at[t, j]], for R lines of n elements.
template <int R, class T>
void run_lines(const T* x, int64_t n, const int64_t* at, const T* w, int64_t taps, int64_t m,
               T* y) {
  for (int64_t j = 0; j < m; ++j) {
    T sum[R] = {};
    for (int64_t t = 0; t < taps; ++t) {
      const int64_t from = at[t * m + j];
      const T factor = w[t * m + j];
      if (factor == T(0)) continue;  // the element may be infinite
      for (int r = 0; r < R; ++r) sum[r] += factor * x[r * n + from];
    }
    for (int r = 0; r < R; ++r) y[r * m + j] = sum[r];
  }
}

// The same for one j with rows of `inner` elements.
template <class T>
void run_row(const T* x, int64_t inner, const int64_t* at, const T* w, int64_t taps, int64_t m,
             T* y) {
  std::fill_n(y, inner, T(0));
  for (int64_t t = 0; t < taps; ++t) {
    const T factor = w[t * m];
    if (factor == T(0)) continue;
    const T* from = x + at[t * m] * inner;
    for (int64_t i = 0; i < inner; ++i) y[i] += factor * from[i];
  }
}

// Returns the positions of the sums' elements, after checking that all are in [0, n).
const int64_t* checked(const View& x, const View& index, const View& weight, int64_t n) {
  if (index.ndim() != 2 || index.dtype() != DType::int64 || index.shape() != weight.shape() ||
      weight.dtype() != x.dtype())
    throw std::invalid_argument(
        "resample: index and weight must be (taps, m), int64 and x's dtype");
  const int64_t* at = reinterpret_cast<const int64_t*>(index.data());
  for (int64_t i = 0; i < index.size(); ++i)
    if (at[i] < 0 || at[i] >= n)
      throw std::out_of_range("resample: index " + std::to_string(at[i]) +
                              " is out of bounds for an axis of extent " + std::to_string(n));
  return at;
}

}  // namespace

View resample(const View& given, const View& given_index, const View& given_weight, int axis) {
  const View x = nd::compact(given), index = nd::compact(given_index);
  const View weight = nd::compact(given_weight);
  const Lines l(x, axis, "resample");
  const int64_t* at = checked(x, index, weight, l.n);
  const int64_t taps = index.shape()[0], m = index.shape()[1];
  Dims shape = x.shape();
  shape[axis] = m;
  View out = View::empty(x.dtype(), shape, x.device());
  if (out.size() == 0) return out;
  with_number(x.dtype(), "resample", [&](auto zero) {
    using T = decltype(zero);
    const T *from = reinterpret_cast<const T*>(x.data()),
            *w = reinterpret_cast<const T*>(weight.data());
    T* to = reinterpret_cast<T*>(out.data());
    if (l.inner == 1) {
      const int64_t groups = (l.outer + kRows - 1) / kRows;
      const int64_t grain = std::max<int64_t>(1, kLineGrain / (kRows * taps * m));
      parallel_for(groups, grain, [&](int64_t begin, int64_t end) {
        for (int64_t group = begin; group < end; ++group) {
          int64_t line = group * kRows;
          if (line + kRows <= l.outer) {
            run_lines<kRows>(from + line * l.n, l.n, at, w, taps, m, to + line * m);
          } else {
            for (; line < l.outer; ++line)
              run_lines<1>(from + line * l.n, l.n, at, w, taps, m, to + line * m);
          }
        }
      });
      return;
    }
    const int64_t grain = std::max<int64_t>(1, kLineGrain / (taps * l.inner));
    parallel_for(l.outer * m, grain, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t j = row % m;
        run_row(from + row / m * l.n * l.inner, l.inner, at + j, w + j, taps, m,
                to + row * l.inner);
      }
    });
  });
  return out;
}

}  // namespace needle
