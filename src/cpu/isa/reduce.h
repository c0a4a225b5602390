// Row kernels of reductions. Sums and products use an accumulator wider than float32: float32 lanes
// are flushed to double after a few terms, so the error does not grow with the length.
#pragma once

#include "common/functors.h"

namespace needle {
namespace NEEDLE_ISA {

template <class S>
struct Accumulator {
  using type = int64_t;
};
template <>
struct Accumulator<float> {
  using type = double;
};
template <>
struct Accumulator<double> {
  using type = double;
};

template <class S>
static void sum_row(const void* xv, int64_t sx, void* accv, int64_t n) {
  using A = typename Accumulator<S>::type;
  const S* x = static_cast<const S*>(xv);
  A* acc = static_cast<A*>(accv);
  constexpr int kLanes = 32;
  if (n < kLanes) {
    A few = *acc;
    for (int64_t j = 0; j < n; ++j) few = fn::add::at(few, convert<A>(Io<S>::load(x[j * sx])));
    *acc = few;
    return;
  }
  A lanes[kLanes] = {};
  int64_t i = 0;
  if (sx == 1) {
    if constexpr (sizeof(S) == 4 && Kind<S>::floating) {
      // Eight terms per lane in float32 (in pairs: an error of 3 roundings), then double.
      for (; i + 8 * kLanes <= n; i += 8 * kLanes) {
        float part[kLanes];
        for (int l = 0; l < kLanes; ++l) {
          const float* p = x + i + l;
          part[l] = ((p[0] + p[kLanes]) + (p[2 * kLanes] + p[3 * kLanes])) +
                    ((p[4 * kLanes] + p[5 * kLanes]) + (p[6 * kLanes] + p[7 * kLanes]));
        }
        for (int l = 0; l < kLanes; ++l) lanes[l] += static_cast<A>(part[l]);
      }
    }
    for (; i + kLanes <= n; i += kLanes)
      for (int l = 0; l < kLanes; ++l)
        lanes[l] = fn::add::at(lanes[l], convert<A>(Io<S>::load(x[i + l])));
  }
  A rest = A(0);
  for (; i < n; ++i) rest = fn::add::at(rest, convert<A>(Io<S>::load(x[i * sx])));
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int l = 0; l < width; ++l) lanes[l] = fn::add::at(lanes[l], lanes[l + width]);
  *acc = fn::add::at(*acc, fn::add::at(lanes[0], rest));
}

template <class S>
static void prod_row(const void* xv, int64_t sx, void* accv, int64_t n) {
  using A = typename Accumulator<S>::type;
  const S* x = static_cast<const S*>(xv);
  A acc = *static_cast<A*>(accv);
  for (int64_t i = 0; i < n; ++i) acc = fn::multiply::at(acc, convert<A>(Io<S>::load(x[i * sx])));
  *static_cast<A*>(accv) = acc;
}

template <class Op, class S>
static void select_row(const void* xv, int64_t sx, void* accv, int64_t n) {
  using C = typename Io<S>::C;
  const S* x = static_cast<const S*>(xv);
  C acc = Io<S>::load(*static_cast<S*>(accv));
  int64_t i = 0;
  if (sx == 1) {
    constexpr int kLanes = 64 / sizeof(S);
    C lanes[kLanes];
    for (int l = 0; l < kLanes; ++l) lanes[l] = acc;
    for (; i + kLanes <= n; i += kLanes)
      for (int l = 0; l < kLanes; ++l) lanes[l] = Op::at(lanes[l], Io<S>::load(x[i + l]));
    for (int l = 0; l < kLanes; ++l) acc = Op::at(acc, lanes[l]);
  }
  for (; i < n; ++i) acc = Op::at(acc, Io<S>::load(x[i * sx]));
  *static_cast<S*>(accv) = Io<S>::store(acc);
}

template <class Op, class S>
static void wide_columns(const void* xv, int64_t sx, void* accv, int64_t n) {
  using A = typename Accumulator<S>::type;
  const S* x = static_cast<const S*>(xv);
  A* __restrict acc = static_cast<A*>(accv);
  if (sx == 1) {
    for (int64_t i = 0; i < n; ++i) acc[i] = Op::at(acc[i], convert<A>(Io<S>::load(x[i])));
  } else {
    for (int64_t i = 0; i < n; ++i) acc[i] = Op::at(acc[i], convert<A>(Io<S>::load(x[i * sx])));
  }
}

template <class Op, class S>
static void select_columns(const void* xv, int64_t sx, void* accv, int64_t n) {
  const S* x = static_cast<const S*>(xv);
  S* __restrict acc = static_cast<S*>(accv);
  for (int64_t i = 0; i < n; ++i)
    acc[i] = Io<S>::store(Op::at(Io<S>::load(acc[i]), Io<S>::load(x[i * sx])));
}

template <class S, bool kMax>
static int64_t arg_row(const void* xv, int64_t sx, int64_t n) {
  const S* x = static_cast<const S*>(xv);
  int64_t best = 0;
  auto top = Io<S>::load(x[0]);
  for (int64_t i = 1; i < n && top == top; ++i) {
    const auto v = Io<S>::load(x[i * sx]);
    if ((kMax ? v > top : v < top) || v != v) {
      top = v;
      best = i;
    }
  }
  return best;
}

}  // namespace NEEDLE_ISA
}  // namespace needle
