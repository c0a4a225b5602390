// Whole layers in one or two passes over memory: checks of operands, and the steps of an LSTM.
#include "common/device.h"

namespace needle {

Matrix::Matrix(const View& x) : view(x) {
  if (!fits()) {
    view = nd::compact(x);
    fits();
  }
}

bool Matrix::fits() {
  const int last = view.ndim() - 1;
  Dims shape = view.shape(), strides = view.strides();
  shape.ndim = strides.ndim = last;
  columns = view.shape()[last];
  const Loop<1> loop(shape, {strides});
  rows = loop.total;
  step = loop.inner(0);
  return loop.ndim == 1 && (columns == 1 || view.strides()[last] == 1);
}

namespace nd {

namespace {

void check_type(DType t, const char* what) {
  if (t != DType::float32 && t != DType::float64)
    throw TypeError(std::string(what) + " is not defined for " + name(t));
}

void check(bool right, const char* what, const View& x, const View& other) {
  if (!right)
    throw std::invalid_argument(std::string(what) + ": " + name(other.dtype()) + " " +
                                other.shape().str() + " does not match " + name(x.dtype()) + " " +
                                x.shape().str());
}

Dims row_of(int64_t n) {
  Dims d;
  d.push(n);
  return d;
}

}  // namespace

Normalized batch_norm(const View& x, const View& weight, const View& bias, double eps) {
  const char* what = "batch_norm";
  check_type(x.dtype(), what);
  if (x.ndim() < 2) throw std::invalid_argument("batch_norm: x has fewer than two axes");
  const Dims channels = row_of(x.shape()[x.ndim() - 1]);
  for (const View* v : {&weight, &bias})
    check(v->shape() == channels && v->dtype() == x.dtype(), what, x, *v);
  same_device(what, x, {&weight, &bias});
  const Matrix m(x);
  if (m.rows == 0) throw std::invalid_argument("batch_norm: x " + x.shape().str() + " has no rows");
  const DType t = x.dtype();
  const View w = compact(weight), b = compact(bias);
  Normalized out{View::empty(t, x.shape(), x.device()), View::empty(t, channels, x.device()),
                 View::empty(t, channels, x.device())};
  if (m.columns > 0) device::batch_norm(m, w, b, eps, out);
  return out;
}

Normalized batch_norm_grad(const View& grad, const View& x, const View& weight, const View& mean,
                           const View& variance, double eps) {
  const char* what = "batch_norm_grad";
  check_type(x.dtype(), what);
  if (x.ndim() < 2) throw std::invalid_argument("batch_norm_grad: x has fewer than two axes");
  const Dims channels = row_of(x.shape()[x.ndim() - 1]);
  check(grad.shape() == x.shape() && grad.dtype() == x.dtype(), what, x, grad);
  for (const View* v : {&weight, &mean, &variance})
    check(v->shape() == channels && v->dtype() == x.dtype(), what, x, *v);
  same_device(what, x, {&grad, &weight, &mean, &variance});
  const Matrix m(x), g(grad);
  if (m.rows == 0)
    throw std::invalid_argument("batch_norm_grad: x " + x.shape().str() + " has no rows");
  const DType t = x.dtype();
  const View w = compact(weight), middle = compact(mean), var = compact(variance);
  Normalized out{View::empty(t, x.shape(), x.device()), View::empty(t, channels, x.device()),
                 View::empty(t, channels, x.device())};
  if (m.columns > 0) device::batch_norm_grad(g, m, w, middle, var, eps, out);
  return out;
}

namespace {

void check_lstm(const char* what, const View& sums, const View& cell) {
  const bool matrices = sums.ndim() == 2 && cell.ndim() == 2;
  check(matrices && sums.dtype() == cell.dtype() && sums.shape()[0] == cell.shape()[0] &&
            cell.shape()[1] <= INT64_MAX / 4 && sums.shape()[1] == 4 * cell.shape()[1],
        what, sums, cell);
}

View like(const View& v) { return View::empty(v.dtype(), v.shape(), v.device()); }

}  // namespace

std::pair<View, View> lstm_gates(const View& sums, const View& cell) {
  const char* what = "lstm_gates";
  check_type(sums.dtype(), what);
  check_lstm(what, sums, cell);
  same_device(what, sums, {&cell});
  const View s = compact(sums), c = compact(cell);
  std::pair<View, View> out{like(c), like(c)};
  if (c.size() > 0) device::lstm_gates(s, c, out.first, out.second);
  return out;
}

std::pair<View, View> lstm_gates_grad(const View& sums, const View& cell, const View& next,
                                      const View* grad_h, const View* grad_c) {
  const char* what = "lstm_gates_grad";
  check_type(sums.dtype(), what);
  check_lstm(what, sums, cell);
  std::optional<View> gh, gc;
  for (const View* v : {&next, grad_h, grad_c})
    if (v != nullptr)
      check(v->shape() == cell.shape() && v->dtype() == cell.dtype(), what, cell, *v);
  same_device(what, sums, {&cell, &next, grad_h, grad_c});
  if (grad_h) gh = compact(*grad_h);
  if (grad_c) gc = compact(*grad_c);
  const View s = compact(sums), c = compact(cell), after = compact(next);
  std::pair<View, View> out{like(s), like(c)};
  if (c.size() > 0)
    device::lstm_gates_grad(s, c, after, gh ? &*gh : nullptr, gc ? &*gc : nullptr, out.first,
                            out.second);
  return out;
}

namespace {

// Returns step t of a sequence (T, B, ...).
View step_of(const View& v, int64_t t) {
  Dims shape, strides;
  for (int i = 1; i < v.ndim(); ++i) {
    shape.push(v.shape()[i]);
    strides.push(v.strides()[i]);
  }
  return View(v.buffer(), v.dtype(), shape, strides, v.offset() + t * v.strides()[0]);
}

View transposed(const View& v) {
  Dims shape, strides;
  for (int i : {1, 0}) {
    shape.push(v.shape()[i]);
    strides.push(v.strides()[i]);
  }
  return View(v.buffer(), v.dtype(), shape, strides, v.offset());
}

Dims shape_of(std::initializer_list<int64_t> extents) {
  Dims d;
  for (int64_t extent : extents) d.push(extent);
  return d;
}

// Checks that projected (T, B, 4H), h and c (B, H) and w (H, 4H) match.
void check_sequence(const char* what, const View& projected, const View& h, const View& c,
                    const View& w) {
  if (projected.ndim() != 3 || projected.shape()[0] < 1)
    throw std::invalid_argument(std::string(what) + ": a sequence " + projected.shape().str() +
                                " is not (T, B, 4H) with at least one step");
  check_lstm(what, step_of(projected, 0), h);
  check(c.shape() == h.shape() && c.dtype() == h.dtype(), what, h, c);
  check(w.dtype() == h.dtype() && w.shape() == shape_of({h.shape()[1], 4 * h.shape()[1]}), what, h,
        w);
}

}  // namespace

LstmSequence lstm_sequence(const View& projected, const View& h, const View& c, const View& w) {
  const char* what = "lstm_sequence";
  check_type(projected.dtype(), what);
  check_sequence(what, projected, h, c, w);
  same_device(what, projected, {&h, &c, &w});
  const DType t = projected.dtype();
  const int64_t steps = projected.shape()[0];
  const Dims states = shape_of({steps, h.shape()[0], h.shape()[1]});
  const View input = compact(projected), first = compact(c);
  LstmSequence out{View::empty(t, states, h.device()), View::empty(t, states, h.device()),
                   like(input)};
  for (int64_t s = 0; s < steps && h.size() > 0; ++s) {
    const View from_state = matmul(s == 0 ? h : step_of(out.hidden, s - 1), w);
    device::lstm_step(step_of(input, s), from_state, s == 0 ? first : step_of(out.cells, s - 1),
                      step_of(out.sums, s), step_of(out.hidden, s), step_of(out.cells, s));
  }
  return out;
}

LstmSequenceGrad lstm_sequence_grad(const View& h, const View& c, const View& w,
                                    const LstmSequence& made, const View* grad_hidden,
                                    const View* grad_cells) {
  const char* what = "lstm_sequence_grad";
  check_type(h.dtype(), what);
  check_sequence(what, made.sums, h, c, w);
  const DType t = h.dtype();
  const int64_t steps = made.sums.shape()[0], batch = h.shape()[0], n = h.shape()[1];
  const Dims states = shape_of({steps, batch, n});
  std::optional<View> of_hidden, of_cells;
  for (const View* v : {&made.hidden, &made.cells, grad_hidden, grad_cells})
    if (v != nullptr) check(v->shape() == states && v->dtype() == t, what, h, *v);
  same_device(what, h, {&c, &w, &made.sums, &made.hidden, &made.cells, grad_hidden, grad_cells});
  if (grad_hidden) of_hidden = compact(*grad_hidden);
  if (grad_cells) of_cells = compact(*grad_cells);
  const View sums = compact(made.sums), cells = compact(made.cells), first = compact(c);
  View to_sums = like(sums);
  View to_h = View::empty(t, h.shape(), h.device()), to_c = View::empty(t, h.shape(), h.device());
  device::fill_bytes(to_h, 0);
  device::fill_bytes(to_c, 0);
  for (int64_t s = steps - 1; s >= 0; --s) {
    const View to_before = View::empty(t, h.shape(), h.device());
    if (h.size() > 0) {
      std::optional<View> gh, gc;
      if (of_hidden) gh = step_of(*of_hidden, s);
      if (of_cells) gc = step_of(*of_cells, s);
      device::lstm_step_grad(step_of(sums, s), s == 0 ? first : step_of(cells, s - 1),
                             step_of(cells, s), gh ? &*gh : nullptr, gc ? &*gc : nullptr, to_h,
                             to_c, step_of(to_sums, s), to_before);
    }
    to_h = matmul(step_of(to_sums, s), transposed(w));
    to_c = to_before;
  }
  // Each step multiplied the state before it by the weight, so one matmul sums over all steps.
  const View earlier = View::empty(t, states, h.device());
  copy(h, step_of(earlier, 0));
  for (int64_t s = 1; s < steps; ++s) copy(step_of(made.hidden, s - 1), step_of(earlier, s));
  const View rows(earlier.buffer(), t, shape_of({steps * batch, n}), shape_of({n, 1}), 0);
  const View grads(to_sums.buffer(), t, shape_of({steps * batch, 4 * n}), shape_of({4 * n, 1}), 0);
  View to_w = matmul(transposed(rows), grads);
  return {to_sums, to_h, to_c, to_w};
}

}  // namespace nd
}  // namespace needle
