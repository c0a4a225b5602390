#include "cpu/scan.h"

#include <algorithm>
#include <cmath>

#include "common/functions.h"
#include "cpu/lines.h"

namespace needle {

namespace {

// Adjacent lines that a task scans at once.
constexpr int64_t kColumns = 128;

// Calls fn(first element, number of adjacent lines) for all lines of an array (outer, n, inner).
template <class F>
void each_block(const Lines& l, F&& fn) {
  const int64_t blocks = (l.inner + kColumns - 1) / kColumns;
  const int64_t grain = std::max<int64_t>(1, kLineGrain / (l.n * std::min(l.inner, kColumns)));
  parallel_for(l.outer * blocks, grain, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t first = task % blocks * kColumns;
      fn(task / blocks * l.n * l.inner + first, std::min(kColumns, l.inner - first));
    }
  });
}

double log_add(double a, double b) {
  const double top = std::max(a, b), low = std::min(a, b);
  if (std::isnan(a) || std::isnan(b)) return a + b;
  return std::isinf(top) ? top : top + std::log1p(std::exp(low - top));
}

// float32 sums and products are accumulated in float64, as in PyTorch.
template <class T, class A, class F>
void run_scan(const Lines& l, const View& x, const View& out, bool reverse, A start, F&& combine) {
  const T* from = reinterpret_cast<const T*>(x.data());
  T* to = reinterpret_cast<T*>(out.data());
  each_block(l, [&](int64_t at, int64_t columns) {
    if (columns == 1) {  // the state in a register
      A state = start;
      for (int64_t i = 0; i < l.n; ++i) {
        const int64_t place = at + (reverse ? l.n - 1 - i : i) * l.inner;
        state = combine(state, static_cast<A>(from[place]));
        to[place] = static_cast<T>(state);
      }
      return;
    }
    A state[kColumns];
    std::fill_n(state, columns, start);
    for (int64_t i = 0; i < l.n; ++i) {
      const int64_t row = at + (reverse ? l.n - 1 - i : i) * l.inner;
      for (int64_t j = 0; j < columns; ++j) {
        state[j] = combine(state[j], static_cast<A>(from[row + j]));
        to[row + j] = static_cast<T>(state[j]);
      }
    }
  });
}

// Integers wrap around, so they are added as unsigned.
template <class T>
using Wide = std::conditional_t<std::is_floating_point<T>::value, double, uint64_t>;

}  // namespace

View scan(Scan kind, const View& given, int axis, bool reverse) {
  const View x = nd::compact(given);
  const Lines l(x, axis, "scan");
  View out = View::empty(x.dtype(), x.shape(), x.device());
  if (out.size() == 0) return out;
  with_number(x.dtype(), "scan", [&](auto zero) {
    using T = decltype(zero);
    using A = Wide<T>;
    if (kind == Scan::sum) run_scan<T, A>(l, x, out, reverse, A(0), [](A a, A b) { return a + b; });
    if (kind == Scan::prod)
      run_scan<T, A>(l, x, out, reverse, A(1), [](A a, A b) { return a * b; });
    if (kind == Scan::logsumexp) run_scan<T, double>(l, x, out, reverse, -INFINITY, log_add);
  });
  return out;
}

View linear_scan(const View& given_a, const View& given_b, int axis, bool reverse) {
  const View a = nd::compact(given_a), b = nd::compact(given_b);
  if (a.shape() != b.shape() || a.dtype() != b.dtype())
    throw std::invalid_argument("linear_scan: both operands must have the same shape and dtype");
  const Lines l(a, axis, "linear_scan");
  View out = View::empty(a.dtype(), a.shape(), a.device());
  if (out.size() == 0) return out;
  with_number(a.dtype(), "linear_scan", [&](auto zero) {
    using T = decltype(zero);
    const T *x = reinterpret_cast<const T*>(a.data()), *y = reinterpret_cast<const T*>(b.data());
    T* to = reinterpret_cast<T*>(out.data());
    each_block(l, [&](int64_t at, int64_t columns) {
      Wide<T> state[kColumns] = {};
      for (int64_t i = 0; i < l.n; ++i) {
        const int64_t row = at + (reverse ? l.n - 1 - i : i) * l.inner;
        for (int64_t j = 0; j < columns; ++j) {
          // The first step has no earlier result, and x * 0 would be NaN for an infinite x.
          const Wide<T> before = i == 0 ? 0 : static_cast<Wide<T>>(x[row + j]) * state[j];
          state[j] = before + static_cast<Wide<T>>(y[row + j]);
          to[row + j] = static_cast<T>(state[j]);
        }
      }
    });
  });
  return out;
}

std::pair<View, View> scan_extreme(bool max, const View& given, int axis) {
  const View x = nd::compact(given);
  const Lines l(x, axis, max ? "cummax" : "cummin");
  View values = View::empty(x.dtype(), x.shape(), x.device());
  View places = View::empty(DType::int64, x.shape(), x.device());
  if (x.size() == 0) return {values, places};
  with_number(x.dtype(), "cummax", [&](auto zero) {
    using T = decltype(zero);
    const T* from = reinterpret_cast<const T*>(x.data());
    T* to = reinterpret_cast<T*>(values.data());
    int64_t* where = reinterpret_cast<int64_t*>(places.data());
    each_block(l, [&](int64_t at, int64_t columns) {
      if (columns == 1) {  // the state in registers; it seldom changes
        T best = from[at];
        int64_t place = 0;
        for (int64_t i = 0; i < l.n; ++i) {
          const T v = from[at + i * l.inner];
          if (__builtin_expect(v != v || (max ? v >= best : v <= best), 0)) {
            best = v;
            place = i;
          }
          to[at + i * l.inner] = best;
          where[at + i * l.inner] = place;
        }
        return;
      }
      for (int64_t i = 0; i < l.n; ++i) {
        for (int64_t p = at + i * l.inner; p < at + i * l.inner + columns; ++p) {
          const T v = from[p];
          const T best = i ? to[p - l.inner] : v;
          const bool taken = i == 0 || v != v || (max ? v >= best : v <= best);
          to[p] = taken ? v : best;
          where[p] = taken ? i : where[p - l.inner];
        }
      }
    });
  });
  return {values, places};
}

}  // namespace needle
