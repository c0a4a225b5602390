// Whole layers in one or two passes over memory: batch normalisation and the LSTM's gates.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/loop.h"
#include "cpu/cpu.h"
#include "cpu/scratch.h"
#include "cpu/thread_pool.h"

namespace needle {
namespace cpu {

namespace {

constexpr int64_t kChunk = 32768;  // elements a sum is cut into, whatever the number of threads
constexpr int64_t kMaxChunks = 64;
constexpr int64_t kGateGrain = 2048;  // cells of an LSTM for which threads pay

// Samples of an LSTM with `hidden` cells that are worth a thread.
int64_t gate_grain(int64_t hidden) { return ceil_div(kGateGrain, std::max<int64_t>(hidden, 1)); }

const LayerKernels& kernels_of(DType t, const char* what) {
  const LayerKernels& k = kernels().layers[static_cast<int>(t)];
  if (k.lstm == nullptr) throw TypeError(std::string(what) + " is not defined for " + name(t));
  return k;
}

void check(bool right, const char* what, const View& x, const View& other) {
  if (!right)
    throw std::invalid_argument(std::string(what) + ": " + name(other.dtype()) + " " +
                                other.shape().str() + " does not go with " + name(x.dtype()) + " " +
                                x.shape().str());
}

Dims row_of(int64_t n) {
  Dims d;
  d.push(n);
  return d;
}

// An array seen as rows of its last axis; copied where its strides are not a matrix's.
struct Matrix {
  View view;
  int64_t rows, columns, step;

  explicit Matrix(const View& x) : view(x) {
    if (!fits()) {
      view = compact(x);
      fits();
    }
  }
  const char* row(int64_t r) const { return view.data() + r * step * itemsize(view.dtype()); }

 private:
  bool fits() {
    Dims shape = view.shape(), strides = view.strides();
    columns = shape[--shape.ndim];
    --strides.ndim;
    const Loop<1> loop(shape, {strides});
    rows = loop.total;
    step = loop.inner(0);
    return loop.ndim == 1 && (columns == 1 || view.strides()[view.ndim() - 1] == 1);
  }
};

Scratch doubles(int64_t rows, int64_t columns) {
  return scratch({rows, columns, int64_t{sizeof(double)}},
                 "batch_norm: the memory for its sums cannot be had");
}

// Runs fn(first row, last row, sums) over chunks of rows, and adds up `n` sums over the chunks, in
// order.
template <class F>
void sum_rows(int64_t rows, int64_t columns, int64_t n, double* sums, F&& fn) {
  const int64_t chunks = std::clamp<int64_t>(rows * columns / kChunk, 1,
                                             std::min(kMaxChunks, std::max<int64_t>(rows, 1)));
  Scratch part = doubles(chunks, n);
  double* parts = reinterpret_cast<double*>(part.get());
  std::fill_n(parts, chunks * n, 0.0);
  parallel_for(chunks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c)
      fn(rows * c / chunks, rows * (c + 1) / chunks, parts + c * n);
  });
  std::fill_n(sums, n, 0.0);
  for (int64_t c = 0; c < chunks; ++c)
    for (int64_t i = 0; i < n; ++i) sums[i] += parts[c * n + i];
}

double value(const View& v, int64_t i) {
  return v.dtype() == DType::float64 ? reinterpret_cast<const double*>(v.data())[i]
                                     : reinterpret_cast<const float*>(v.data())[i];
}

void put(const View& v, int64_t i, double x) {
  if (v.dtype() == DType::float64) {
    reinterpret_cast<double*>(v.data())[i] = x;
  } else {
    reinterpret_cast<float*>(v.data())[i] = static_cast<float>(x);
  }
}

}  // namespace

Normalized batch_norm(const View& x, const View& weight, const View& bias, double eps) {
  const char* what = "batch_norm";
  const LayerKernels& kernel = kernels_of(x.dtype(), what);
  if (x.ndim() < 2) throw std::invalid_argument("batch_norm: x has fewer than two axes");
  const Dims channels = row_of(x.shape()[x.ndim() - 1]);
  for (const View* v : {&weight, &bias})
    check(v->shape() == channels && v->dtype() == x.dtype(), what, x, *v);
  const Matrix m(x);
  if (m.rows == 0) throw std::invalid_argument("batch_norm: x " + x.shape().str() + " has no rows");
  const DType t = x.dtype();
  const int64_t n = m.columns, size = itemsize(t);
  const View w = compact(weight), b = compact(bias);
  Normalized out{View::empty(t, x.shape()), View::empty(t, channels), View::empty(t, channels)};
  Scratch memory = doubles(2, n);
  double *mean = reinterpret_cast<double*>(memory.get()), *squares = mean + n;
  sum_rows(m.rows, n, n, mean, [&](int64_t from, int64_t to, double* sums) {
    kernel.column_sums(m.row(from), m.step, to - from, sums, n);
  });
  for (int64_t i = 0; i < n; ++i) mean[i] /= static_cast<double>(m.rows);
  sum_rows(m.rows, n, n, squares, [&](int64_t from, int64_t to, double* sums) {
    kernel.column_squares(m.row(from), m.step, to - from, mean, sums, n);
  });
  const View scale = View::empty(t, channels);
  for (int64_t i = 0; i < n; ++i) {
    const double variance = squares[i] / static_cast<double>(m.rows);
    put(out.mean, i, mean[i]);
    put(out.variance, i, variance);
    put(scale, i, value(w, i) / std::sqrt(variance + eps));
  }
  parallel_for(m.rows, ceil_div(kGrain, std::max<int64_t>(n, 1)), [&](int64_t begin, int64_t end) {
    kernel.column_affine(nullptr, 0, nullptr, m.row(begin), m.step, out.mean.data(), scale.data(),
                         b.data(), end - begin, out.y.data() + begin * n * size, n);
  });
  return out;
}

Normalized batch_norm_grad(const View& grad, const View& x, const View& weight, const View& mean,
                           const View& variance, double eps) {
  const char* what = "batch_norm_grad";
  const LayerKernels& kernel = kernels_of(x.dtype(), what);
  if (x.ndim() < 2) throw std::invalid_argument("batch_norm_grad: x has fewer than two axes");
  const Dims channels = row_of(x.shape()[x.ndim() - 1]);
  check(grad.shape() == x.shape() && grad.dtype() == x.dtype(), what, x, grad);
  for (const View* v : {&weight, &mean, &variance})
    check(v->shape() == channels && v->dtype() == x.dtype(), what, x, *v);
  const Matrix m(x), g(grad);
  if (m.rows == 0)
    throw std::invalid_argument("batch_norm_grad: x " + x.shape().str() + " has no rows");
  const DType t = x.dtype();
  const int64_t n = m.columns, size = itemsize(t);
  const View w = compact(weight), middle = compact(mean), var = compact(variance);
  Normalized out{View::empty(t, x.shape()), View::empty(t, channels), View::empty(t, channels)};
  Scratch memory = doubles(3, n);
  double *centre = reinterpret_cast<double*>(memory.get()), *sums = centre + n;
  for (int64_t i = 0; i < n; ++i) centre[i] = value(middle, i);
  sum_rows(m.rows, n, 2 * n, sums, [&](int64_t from, int64_t to, double* into) {
    kernel.column_products(g.row(from), g.step, m.row(from), m.step, to - from, centre, into, n);
  });
  // x' = (x - mean) * r; gx = w r (g - mean(g) - x' mean(g x'))
  const View a = View::empty(t, channels), b = View::empty(t, channels),
             c = View::empty(t, channels);
  for (int64_t i = 0; i < n; ++i) {
    const double r = 1 / std::sqrt(value(var, i) + eps), rows = static_cast<double>(m.rows);
    const double along = sums[n + i] * r, factor = value(w, i) * r;
    put(out.mean, i, along);
    put(out.variance, i, sums[i]);
    put(a, i, factor);
    put(b, i, -factor * r * along / rows);
    put(c, i, -factor * sums[i] / rows);
  }
  parallel_for(m.rows, ceil_div(kGrain, std::max<int64_t>(n, 1)), [&](int64_t begin, int64_t end) {
    kernel.column_affine(g.row(begin), g.step, a.data(), m.row(begin), m.step, middle.data(),
                         b.data(), c.data(), end - begin, out.y.data() + begin * n * size, n);
  });
  return out;
}

namespace {

void check_lstm(const char* what, const View& sums, const View& cell) {
  const bool matrices = sums.ndim() == 2 && cell.ndim() == 2;
  check(matrices && sums.dtype() == cell.dtype() && sums.shape()[0] == cell.shape()[0] &&
            cell.shape()[1] <= INT64_MAX / 4 && sums.shape()[1] == 4 * cell.shape()[1],
        what, sums, cell);
}

}  // namespace

std::pair<View, View> lstm_gates(const View& sums, const View& cell) {
  const char* what = "lstm_gates";
  const LayerKernels& kernel = kernels_of(sums.dtype(), what);
  check_lstm(what, sums, cell);
  const View s = compact(sums), c = compact(cell);
  std::pair<View, View> out{View::empty(c.dtype(), c.shape()), View::empty(c.dtype(), c.shape())};
  const int64_t n = c.shape()[1], row = n * itemsize(c.dtype());
  parallel_for(c.shape()[0], gate_grain(n), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      kernel.lstm(s.data() + 4 * r * row, c.data() + r * row, out.first.data() + r * row,
                  out.second.data() + r * row, n);
  });
  return out;
}

std::pair<View, View> lstm_gates_grad(const View& sums, const View& cell, const View& next,
                                      const View* grad_h, const View* grad_c) {
  const char* what = "lstm_gates_grad";
  const LayerKernels& kernel = kernels_of(sums.dtype(), what);
  check_lstm(what, sums, cell);
  std::optional<View> gh, gc;
  for (const View* v : {&next, grad_h, grad_c})
    if (v != nullptr)
      check(v->shape() == cell.shape() && v->dtype() == cell.dtype(), what, cell, *v);
  if (grad_h) gh = compact(*grad_h);
  if (grad_c) gc = compact(*grad_c);
  const View s = compact(sums), c = compact(cell), after = compact(next);
  std::pair<View, View> out{View::empty(s.dtype(), s.shape()), View::empty(c.dtype(), c.shape())};
  const int64_t n = c.shape()[1], row = n * itemsize(c.dtype());
  parallel_for(c.shape()[0], gate_grain(n), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      kernel.lstm_grad(s.data() + 4 * r * row, c.data() + r * row, after.data() + r * row,
                       gh ? gh->data() + r * row : nullptr, gc ? gc->data() + r * row : nullptr,
                       out.first.data() + 4 * r * row, out.second.data() + r * row, n);
  });
  return out;
}

namespace {

// Step t of a sequence (T, B, ...).
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

// Whether projected (T, B, 4H), h and c (B, H) and w (H, 4H) go together.
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
  const LayerKernels& kernel = kernels_of(projected.dtype(), what);
  check_sequence(what, projected, h, c, w);
  const DType t = projected.dtype();
  const int64_t steps = projected.shape()[0], batch = h.shape()[0], n = h.shape()[1];
  const int64_t row = n * itemsize(t);
  const BinaryRow add = kernels().binary[static_cast<int>(Binary::add)][static_cast<int>(t)];
  const View input = compact(projected), first = compact(c);
  LstmSequence out{View::empty(t, shape_of({steps, batch, n})),
                   View::empty(t, shape_of({steps, batch, n})), View::empty(t, input.shape())};
  for (int64_t s = 0; s < steps; ++s) {
    const View from_state = matmul(s == 0 ? h : step_of(out.hidden, s - 1), w);
    const char* cell = s == 0 ? first.data() : out.cells.data() + (s - 1) * batch * row;
    parallel_for(batch, gate_grain(n), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        char* sums = out.sums.data() + (s * batch + r) * 4 * row;
        add(input.data() + (s * batch + r) * 4 * row, 1, from_state.data() + r * 4 * row, 1, sums,
            4 * n);
        kernel.lstm(sums, cell + r * row, out.hidden.data() + (s * batch + r) * row,
                    out.cells.data() + (s * batch + r) * row, n);
      }
    });
  }
  return out;
}

LstmSequenceGrad lstm_sequence_grad(const View& h, const View& c, const View& w,
                                    const LstmSequence& made, const View* grad_hidden,
                                    const View* grad_cells) {
  const char* what = "lstm_sequence_grad";
  const LayerKernels& kernel = kernels_of(h.dtype(), what);
  check_sequence(what, made.sums, h, c, w);
  const DType t = h.dtype();
  const int64_t steps = made.sums.shape()[0], batch = h.shape()[0], n = h.shape()[1];
  const int64_t row = n * itemsize(t), step = batch * row;
  const Dims states = shape_of({steps, batch, n});
  std::optional<View> of_hidden, of_cells;
  for (const View* v : {&made.hidden, &made.cells, grad_hidden, grad_cells})
    if (v != nullptr) check(v->shape() == states && v->dtype() == t, what, h, *v);
  if (grad_hidden) of_hidden = compact(*grad_hidden);
  if (grad_cells) of_cells = compact(*grad_cells);
  const View sums = compact(made.sums), cells = compact(made.cells), first = compact(c);
  const AddToRow add = kernels().add_to[static_cast<int>(t)];
  View to_sums = View::empty(t, sums.shape());
  View to_h = View::empty(t, h.shape()), to_c = View::empty(t, h.shape());
  std::memset(to_h.data(), 0, static_cast<size_t>(step));
  std::memset(to_c.data(), 0, static_cast<size_t>(step));
  for (int64_t s = steps - 1; s >= 0; --s) {
    const char* before = s == 0 ? first.data() : cells.data() + (s - 1) * step;
    const View to_before = View::empty(t, h.shape());
    parallel_for(batch, gate_grain(n), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        char *gh = to_h.data() + r * row, *gc = to_c.data() + r * row;
        if (of_hidden) add(of_hidden->data() + s * step + r * row, 1, gh, 1, n);
        if (of_cells) add(of_cells->data() + s * step + r * row, 1, gc, 1, n);
        kernel.lstm_grad(sums.data() + 4 * (s * step + r * row), before + r * row,
                         cells.data() + s * step + r * row, gh, gc,
                         to_sums.data() + 4 * (s * step + r * row), to_before.data() + r * row, n);
      }
    });
    to_h = matmul(step_of(to_sums, s), transposed(w));
    to_c = to_before;
  }
  // The weight met the state before each step: one product for all of them.
  const View earlier = View::empty(t, states);
  copy(h, step_of(earlier, 0));
  for (int64_t s = 1; s < steps; ++s) copy(step_of(made.hidden, s - 1), step_of(earlier, s));
  const View rows(earlier.buffer(), t, shape_of({steps * batch, n}), shape_of({n, 1}), 0);
  const View grads(to_sums.buffer(), t, shape_of({steps * batch, 4 * n}), shape_of({4 * n, 1}), 0);
  View to_w = matmul(transposed(rows), grads);
  return {to_sums, to_h, to_c, to_w};
}

}  // namespace cpu
}  // namespace needle
