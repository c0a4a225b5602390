// Scans, sorts and weighted sums along one axis, for numbers in their compute dtype; random
// numbers; and group norms.
#pragma once

#include <utility>

#include "common/functions.h"

namespace needle {

enum class Scan { sum, prod, logsumexp };

// y[i] = x[i] combined with y[i - 1]; from the end if `reverse`. The result has x's dtype.
View scan(Scan kind, const View& x, int axis, bool reverse);
// y[i] = a[i] * y[i - 1] + b[i], with y[-1] = 0.
View linear_scan(const View& a, const View& b, int axis, bool reverse);
// The largest (smallest) element so far and its last position; NaN from the first NaN on.
std::pair<View, View> scan_extreme(bool max, const View& x, int axis);
// y[..., j, ...] = the sum over t of weight[t, j] * x[..., index[t, j], ...].
View resample(const View& x, const View& index, const View& weight, int axis);
// Sorted values and their positions; equal values keep their order, and NaN is the largest.
std::pair<View, View> sort(const View& x, int axis, bool descending);
// The first k sorted values and their positions.
std::pair<View, View> topk(const View& x, int axis, bool descending, int64_t k);
// `count` numbers in [0, 1), float64 if `wide` and float32 otherwise, by Philox 4x32-10. `state` is
// int64 (2,): the key, and the number of the first block.
View philox(const View& state, int64_t count, bool wide);
// Cuts x's channels, along `axis`, into `groups` of adjacent channels. Normalises each group of a
// sample (axes before `axis`), then multiplies by weight and adds bias (each (channels,)).
View group_norm(const View& x, const View& weight, const View& bias, int axis, int64_t groups,
                double eps);
// The gradients for x, weight and bias (in this order) from the gradient for group_norm's result.
Normalized group_norm_grad(const View& grad, const View& x, const View& weight, int axis,
                           int64_t groups, double eps);
// For each value, the first position (the last if `right`) at which it can be inserted into the
// sorted x. x is (n,), or (..., n) if the values have the same axes before their last.
View searchsorted(const View& x, const View& values, bool right);

}  // namespace needle
