// Reductions: the axes, dtypes and shapes of their results.
#include "common/device.h"

namespace needle {
namespace nd {

namespace {

Split split(const View& x, const Dims& axes, bool keepdims, const char* what) {
  bool is_reduced[kMaxDims] = {};
  for (int i = 0; i < axes.ndim; ++i) {
    if (axes[i] < 0 || axes[i] >= x.ndim() || is_reduced[axes[i]])
      throw std::invalid_argument(std::string(what) + ": axes " + axes.str() +
                                  " are not distinct axes of shape " + x.shape().str());
    is_reduced[axes[i]] = true;
  }
  Split s;
  for (int i = 0; i < x.ndim(); ++i) {
    (is_reduced[i] ? s.reduced : s.kept).push(x.shape()[i]);
    (is_reduced[i] ? s.reduced_strides : s.kept_strides).push(x.strides()[i]);
    if (!is_reduced[i]) {
      s.shape.push(x.shape()[i]);
    } else if (keepdims) {
      s.shape.push(1);
    }
  }
  return s;
}

void refuse_nothing(const Split& s, const View& x, const char* what) {
  for (int i = 0; i < s.reduced.ndim; ++i)
    if (s.reduced[i] == 0)
      throw std::invalid_argument(std::string(what) + ": no elements to choose from in shape " +
                                  x.shape().str());
}

}  // namespace

View reduce(Reduction op, const View& x, const Dims& axes, bool keepdims) {
  const char* what = kReductionNames[static_cast<int>(op)];
  const Split s = split(x, axes, keepdims, what);
  const bool selects = op == Reduction::max || op == Reduction::min;
  if (selects) refuse_nothing(s, x, what);
  if (!device::computes(x.dtype())) {
    const View wide = reduce(op, cast(x, compute_type(x.dtype())), axes, keepdims);
    return selects ? cast(wide, x.dtype()) : wide;
  }
  return device::reduce(op, x, s, selects ? x.dtype() : sum_type(x.dtype()));
}

View arg_reduce(bool max, const View& x, int64_t axis, bool keepdims) {
  const char* what = max ? "argmax" : "argmin";
  Dims axes;
  axes.push(axis);
  const Split s = split(x, axes, keepdims, what);
  refuse_nothing(s, x, what);
  if (!device::computes(x.dtype()))
    return arg_reduce(max, cast(x, compute_type(x.dtype())), axis, keepdims);
  View out = View::empty(DType::int64, s.shape, x.device());
  if (out.size() > 0) device::arg_reduce(max, x, s, out);
  return out;
}

}  // namespace nd
}  // namespace needle
