// The functions of a device module over views, common to all devices. They check operands, allocate
// results, and leave the work to the functions of device.h. Each throws (std::invalid_argument,
// TypeError, std::out_of_range, std::bad_alloc) before it writes.
#pragma once

#include <optional>
#include <utility>

#include "common/ops.h"
#include "common/view.h"

namespace needle {

// A view or a Python scalar. Scalars are weak; `kind` is 0 bool, 1 integer, 2 floating.
struct Operand {
  const View* view = nullptr;
  int kind = 0;
  int64_t integer = 0;
  double real = 0;
  bool big = false;  // an integer beyond int64; `real` has its sign
};

// (rows, columns)
struct ConvWindow {
  int64_t stride[2], padding[2], dilation[2];
};

struct Normalized {
  View y, mean, variance;
};

// For each step: h' and c' (T, B, H), and the gates' pre-activations (T, B, 4H).
struct LstmSequence {
  View hidden, cells, sums;
};

struct LstmSequenceGrad {
  View projected, h, c, w;
};

namespace nd {

void copy(const View& src, const View& dst);
void fill(const View& dst, const Operand& value);
View cast(const View& x, DType dtype);
View compact(const View& x);
View unary(Unary op, const View& x);
View binary(Binary op, const Operand& a, const Operand& b);
View where(const View& condition, const Operand& a, const Operand& b);
View reduce(Reduction op, const View& x, const Dims& axes, bool keepdims);
View arg_reduce(bool max, const View& x, int64_t axis, bool keepdims);
View matmul(const View& a, const View& b);
View conv2d(const View& x, const View& w, const ConvWindow& at);
// The gradients of conv2d for an input (N, h, width, C) and for a weight (kh, kw, C, O), from the
// gradient for its outputs.
View conv2d_input(const View& g, const View& w, int64_t h, int64_t width, const ConvWindow& at);
View conv2d_weight(const View& x, const View& g, int64_t kh, int64_t kw, const ConvWindow& at);
// x (..., C) normalised over all axes but the last, times weight plus bias; mean and variance (C,).
Normalized batch_norm(const View& x, const View& weight, const View& bias, double eps);
// The gradients for x, weight and bias (in this order) from the gradient for batch_norm's y.
Normalized batch_norm_grad(const View& grad, const View& x, const View& weight, const View& mean,
                           const View& variance, double eps);
// sums (B, 4H: i, f, g, o), cell (B, H) -> (h', c'); and the gradients for both from the gradients
// for h' and c'. A null gradient stands for none.
std::pair<View, View> lstm_gates(const View& sums, const View& cell);
std::pair<View, View> lstm_gates_grad(const View& sums, const View& cell, const View& next,
                                      const View* grad_h, const View* grad_c);
// All steps of an LSTM: `projected` (T, B, 4H) is the input's part of the gates' sums, h and c
// (B, H) are the first states, and w (H, 4H) is the weight of h. The second function returns the
// gradients for all four from those for hidden and cells; a null gradient stands for none.
LstmSequence lstm_sequence(const View& projected, const View& h, const View& c, const View& w);
LstmSequenceGrad lstm_sequence_grad(const View& h, const View& c, const View& w,
                                    const LstmSequence& made, const View* grad_hidden,
                                    const View* grad_cells);
View gather(const View& x, const View& index, int64_t axis);
void scatter(const View& dst, const View& index, const View& src, int64_t axis, bool accumulate);
// out[..., j, ...] = x[..., index[..., j, ...], ...] along the axis; other extents are equal.
View take_along(const View& x, const View& index, int64_t axis);
// A copy of x with the elements of src at these positions; src broadcasts to the index's shape.
View put_along(const View& x, const View& index, const View& src, int64_t axis, Put how);
void sgd_step(const View& param, const View& grad, const View* velocity, const SgdFactors& f);
void adam_step(const View& param, const View& grad, const View& m, const View& v,
               const AdamFactors& f);

}  // namespace nd
}  // namespace needle
