// A joint loop over N strided operands. It drops axes of extent 1, merges axes that continue each
// other, and cuts any range of the flattened elements into runs along the last axis.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "common/view.h"

namespace needle {

template <int N>
struct Loop {
  int ndim = 0;
  int64_t shape[kMaxDims];
  int64_t strides[N][kMaxDims];
  int64_t total = 1;

  Loop(const Dims& extents, const std::array<Dims, N>& s) {
    for (int i = 0; i < extents.ndim; ++i) {
      total *= extents[i];
      if (extents[i] == 1) continue;
      bool merge = ndim > 0;
      for (int k = 0; k < N && merge; ++k) merge = strides[k][ndim - 1] == s[k][i] * extents[i];
      if (merge) {
        shape[ndim - 1] *= extents[i];
        for (int k = 0; k < N; ++k) strides[k][ndim - 1] = s[k][i];
      } else {
        shape[ndim] = extents[i];
        for (int k = 0; k < N; ++k) strides[k][ndim] = s[k][i];
        ++ndim;
      }
    }
    if (ndim == 0) {
      shape[0] = 1;
      for (int k = 0; k < N; ++k) strides[k][0] = 0;
      ndim = 1;
    }
  }

  // The loop over all axes but the last.
  Loop outer() const {
    Loop out = *this;
    --out.ndim;
    out.total /= shape[ndim - 1];
    return out;
  }

  int64_t inner(int k) const { return strides[k][ndim - 1]; }

  // fn(offsets[N], length) for each run in [begin, end) of the flattened index space.
  template <class F>
  void run(int64_t begin, int64_t end, F&& fn) const {
    if (begin >= end) return;
    int64_t index[kMaxDims], offset[N] = {};
    int64_t rest = begin;
    for (int d = ndim - 1; d >= 0; --d) {
      index[d] = rest % shape[d];
      rest /= shape[d];
      for (int k = 0; k < N; ++k) offset[k] += index[d] * strides[k][d];
    }
    const int last = ndim - 1;
    int64_t left = end - begin;
    for (;;) {
      int64_t n = std::min(shape[last] - index[last], left);
      fn(static_cast<const int64_t*>(offset), n);
      left -= n;
      if (left == 0) return;
      for (int k = 0; k < N; ++k) offset[k] -= index[last] * strides[k][last];
      index[last] = 0;
      for (int d = last - 1; d >= 0; --d) {
        for (int k = 0; k < N; ++k) offset[k] += strides[k][d];
        if (++index[d] < shape[d]) break;
        for (int k = 0; k < N; ++k) offset[k] -= shape[d] * strides[k][d];
        index[d] = 0;
      }
    }
  }
};

}  // namespace needle
