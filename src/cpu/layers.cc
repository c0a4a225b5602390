// Whole layers in one or two passes over memory: normalisations and the LSTM's gates.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/device.h"
#include "cpu/kernel_table.h"
#include "cpu/scan.h"
#include "cpu/scratch.h"
#include "threads/thread_pool.h"

namespace needle {
namespace device {

namespace {

constexpr int64_t kChunk = 32768;  // elements per chunk of a sum, whatever the number of threads
constexpr int64_t kMaxChunks = 64;
constexpr int64_t kGateGrain = 2048;  // threads pay off from this many LSTM cells on

// The number of samples that are worth a thread, in an LSTM with `hidden` cells.
int64_t gate_grain(int64_t hidden) { return ceil_div(kGateGrain, std::max<int64_t>(hidden, 1)); }

const LayerKernels& kernels_of(DType t) { return kernels().layers[static_cast<int>(t)]; }

Scratch doubles(int64_t rows, int64_t columns) {
  return scratch({rows, columns, int64_t{sizeof(double)}},
                 "a norm: cannot allocate memory for its sums");
}

// Runs fn(first row, last row, sums) over chunks of rows, and adds the chunks' `n` sums in order.
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

void batch_norm(const Matrix& m, const View& weight, const View& bias, double eps,
                const Normalized& out) {
  const DType t = m.view.dtype();
  const LayerKernels& kernel = kernels_of(t);
  const int64_t n = m.columns, size = itemsize(t);
  Scratch memory = doubles(2, n);
  double *mean = reinterpret_cast<double*>(memory.get()), *squares = mean + n;
  sum_rows(m.rows, n, n, mean, [&](int64_t from, int64_t to, double* sums) {
    kernel.column_sums(m.row(from), m.step, to - from, sums, n);
  });
  for (int64_t i = 0; i < n; ++i) mean[i] /= static_cast<double>(m.rows);
  sum_rows(m.rows, n, n, squares, [&](int64_t from, int64_t to, double* sums) {
    kernel.column_squares(m.row(from), m.step, to - from, mean, sums, n);
  });
  const View scale = View::empty(t, weight.shape(), 0);
  for (int64_t i = 0; i < n; ++i) {
    const double variance = squares[i] / static_cast<double>(m.rows);
    put(out.mean, i, mean[i]);
    put(out.variance, i, variance);
    put(scale, i, value(weight, i) / std::sqrt(variance + eps));
  }
  parallel_for(m.rows, ceil_div(kGrain, std::max<int64_t>(n, 1)), [&](int64_t begin, int64_t end) {
    kernel.column_affine(nullptr, 0, nullptr, m.row(begin), m.step, out.mean.data(), scale.data(),
                         bias.data(), end - begin, out.y.data() + begin * n * size, n);
  });
}

void batch_norm_grad(const Matrix& grad, const Matrix& m, const View& weight, const View& mean,
                     const View& variance, double eps, const Normalized& out) {
  const DType t = m.view.dtype();
  const LayerKernels& kernel = kernels_of(t);
  const int64_t n = m.columns, size = itemsize(t);
  Scratch memory = doubles(3, n);
  double *centre = reinterpret_cast<double*>(memory.get()), *sums = centre + n;
  for (int64_t i = 0; i < n; ++i) centre[i] = value(mean, i);
  sum_rows(m.rows, n, 2 * n, sums, [&](int64_t from, int64_t to, double* into) {
    kernel.column_products(grad.row(from), grad.step, m.row(from), m.step, to - from, centre, into,
                           n);
  });
  // x' = (x - mean) * r; gx = w r (g - mean(g) - x' mean(g x'))
  const View a = View::empty(t, weight.shape(), 0), b = View::empty(t, weight.shape(), 0),
             c = View::empty(t, weight.shape(), 0);
  for (int64_t i = 0; i < n; ++i) {
    const double r = 1 / std::sqrt(value(variance, i) + eps), rows = static_cast<double>(m.rows);
    const double along = sums[n + i] * r, factor = value(weight, i) * r;
    put(out.mean, i, along);
    put(out.variance, i, sums[i]);
    put(a, i, factor);
    put(b, i, -factor * r * along / rows);
    put(c, i, sums[i] / rows);
  }
  parallel_for(m.rows, ceil_div(kGrain, std::max<int64_t>(n, 1)), [&](int64_t begin, int64_t end) {
    kernel.column_affine(grad.row(begin), grad.step, a.data(), m.row(begin), m.step, mean.data(),
                         b.data(), c.data(), end - begin, out.y.data() + begin * n * size, n);
  });
}

}  // namespace device

namespace {

// x as samples of channels of `inner` elements; a group has `each` channels.
struct Grouped {
  int64_t samples = 1, channels = 1, inner = 1, groups = 1, each = 1;

  // Throws std::invalid_argument unless the groups divide the channels and vectors have one number
  // per channel.
  Grouped(const char* what, const View& x, std::initializer_list<const View*> vectors, int axis,
          int64_t n)
      : groups(n) {
    if (x.dtype() != DType::float32 && x.dtype() != DType::float64)
      throw TypeError(std::string(what) + " is not defined for " + name(x.dtype()));
    if (axis < 0 || axis >= x.ndim() || n < 1 || x.shape()[axis] % n != 0)
      throw std::invalid_argument(std::string(what) + ": x " + x.shape().str() +
                                  " has no such groups: they must divide its channels");
    channels = x.shape()[axis];
    if (x.size() == 0) samples = inner = 0;
    for (int i = 0; i < x.ndim() && x.size() > 0; ++i)
      if (i != axis) (i < axis ? samples : inner) *= x.shape()[i];
    each = channels / groups;
    for (const View* v : vectors)
      if (v->dtype() != x.dtype() || v->ndim() != 1 || v->shape()[0] != channels)
        throw std::invalid_argument(std::string(what) + ": " + name(v->dtype()) + " " +
                                    v->shape().str() + " does not match " + name(x.dtype()) + " " +
                                    x.shape().str());
  }

  int64_t size() const { return each * inner; }  // elements of a group
};

}  // namespace

View group_norm(const View& x, const View& weight, const View& bias, int axis, int64_t groups,
                double eps) {
  const Grouped of("group_norm", x, {&weight, &bias}, axis, groups);
  const View from = nd::compact(x), w = nd::compact(weight), b = nd::compact(bias);
  const View out = View::empty(x.dtype(), x.shape(), x.device());
  if (x.size() == 0) return out;
  const int64_t size = itemsize(x.dtype()), row = of.size() * size;
  const auto kernel = device::kernels_of(x.dtype()).group_norm;
  const int64_t grain = ceil_div(kGrain, of.size());
  parallel_for(of.samples * groups, grain, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t first = r % groups * of.each * size;
      kernel(from.data() + r * row, w.data() + first, b.data() + first, of.each, of.inner, eps,
             out.data() + r * row);
    }
  });
  return out;
}

Normalized group_norm_grad(const View& grad, const View& x, const View& weight, int axis,
                           int64_t groups, double eps) {
  const char* what = "group_norm_grad";
  const Grouped of(what, x, {&weight}, axis, groups);
  if (grad.dtype() != x.dtype() || !(grad.shape() == x.shape()))
    throw std::invalid_argument(std::string(what) + ": " + grad.shape().str() +
                                " does not match x " + x.shape().str());
  const View g = nd::compact(grad), from = nd::compact(x), w = nd::compact(weight);
  const DType t = x.dtype();
  const Normalized out{View::empty(t, x.shape(), x.device()),
                       View::empty(t, weight.shape(), x.device()),
                       View::empty(t, weight.shape(), x.device())};
  const int64_t size = itemsize(t), row = of.size() * size, n = of.channels;
  const auto kernel = device::kernels_of(t).group_norm_grad;
  // A task is one group of a chunk of samples; no other task adds to the group's sums.
  const int64_t most = std::clamp<int64_t>(of.samples, 1, device::kMaxChunks);
  const int64_t chunks = std::clamp<int64_t>(x.size() / device::kChunk, 1, most);
  const device::Scratch memory = device::doubles(2 * chunks, n);
  double* sums = reinterpret_cast<double*>(memory.get());
  std::fill_n(sums, 2 * chunks * n, 0.0);
  const int64_t tasks = x.size() > 0 ? chunks * groups : 0;
  const int64_t grain = tasks > 0 ? ceil_div(kGrain, ceil_div(x.size(), tasks)) : 1;
  parallel_for(tasks, grain, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t chunk = task / groups, group = task % groups, channel = group * of.each;
      for (int64_t s = of.samples * chunk / chunks; s < of.samples * (chunk + 1) / chunks; ++s) {
        const int64_t at = (s * groups + group) * row;
        double* to = sums + 2 * chunk * n + channel;
        kernel(g.data() + at, from.data() + at, w.data() + channel * size, of.each, of.inner, eps,
               to, to + n, out.y.data() + at);
      }
    }
  });
  for (int64_t c = 1; c < chunks; ++c)
    for (int64_t i = 0; i < 2 * n; ++i) sums[i] += sums[2 * c * n + i];
  for (int64_t i = 0; i < n; ++i) {
    device::put(out.mean, i, sums[i]);
    device::put(out.variance, i, sums[n + i]);
  }
  return out;
}

namespace device {

void lstm_gates(const View& sums, const View& cell, const View& h, const View& c) {
  const LayerKernels& kernel = kernels_of(cell.dtype());
  const int64_t n = cell.shape()[1], row = n * itemsize(cell.dtype());
  parallel_for(cell.shape()[0], gate_grain(n), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      kernel.lstm(sums.data() + 4 * r * row, cell.data() + r * row, h.data() + r * row,
                  c.data() + r * row, n);
  });
}

void lstm_gates_grad(const View& sums, const View& cell, const View& next, const View* grad_h,
                     const View* grad_c, const View& to_sums, const View& to_cell) {
  const LayerKernels& kernel = kernels_of(cell.dtype());
  const int64_t n = cell.shape()[1], row = n * itemsize(cell.dtype());
  parallel_for(cell.shape()[0], gate_grain(n), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      kernel.lstm_grad(sums.data() + 4 * r * row, cell.data() + r * row, next.data() + r * row,
                       grad_h ? grad_h->data() + r * row : nullptr,
                       grad_c ? grad_c->data() + r * row : nullptr, to_sums.data() + 4 * r * row,
                       to_cell.data() + r * row, n);
  });
}

void lstm_step(const View& input, const View& from_state, const View& cell, const View& sums,
               const View& h, const View& c) {
  const DType t = cell.dtype();
  const LayerKernels& kernel = kernels_of(t);
  const BinaryRow add = kernels().binary[static_cast<int>(Binary::add)][static_cast<int>(t)];
  const int64_t n = cell.shape()[1], row = n * itemsize(t);
  parallel_for(cell.shape()[0], gate_grain(n), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      char* to = sums.data() + 4 * r * row;
      add(input.data() + 4 * r * row, 1, from_state.data() + 4 * r * row, 1, to, 4 * n);
      kernel.lstm(to, cell.data() + r * row, h.data() + r * row, c.data() + r * row, n);
    }
  });
}

void lstm_step_grad(const View& sums, const View& cell, const View& next, const View* grad_h,
                    const View* grad_c, const View& to_h, const View& to_c, const View& to_sums,
                    const View& to_cell) {
  const DType t = cell.dtype();
  const LayerKernels& kernel = kernels_of(t);
  const AddToRow add = kernels().add_to[static_cast<int>(t)];
  const int64_t n = cell.shape()[1], row = n * itemsize(t);
  parallel_for(cell.shape()[0], gate_grain(n), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      char *gh = to_h.data() + r * row, *gc = to_c.data() + r * row;
      if (grad_h) add(grad_h->data() + r * row, 1, gh, 1, n);
      if (grad_c) add(grad_c->data() + r * row, 1, gc, 1, n);
      kernel.lstm_grad(sums.data() + 4 * r * row, cell.data() + r * row, next.data() + r * row, gh,
                       gc, to_sums.data() + 4 * r * row, to_cell.data() + r * row, n);
    }
  });
}

bool softmax(const View& x, bool log, const View& out) {
  const int t = static_cast<int>(x.dtype());
  const int64_t n = x.shape()[x.ndim() - 1], size = itemsize(x.dtype()), rows = x.size() / n;
  const KernelTable& k = kernels();
  const ReduceRow largest = k.reduce_row[static_cast<int>(Reduction::max)][t];
  const ReduceRow add = k.reduce_row[static_cast<int>(Reduction::sum)][t];
  const BinaryRow subtract = k.binary[static_cast<int>(Binary::subtract)][t];
  const BinaryRow divide = k.binary[static_cast<int>(Binary::divide)][t];
  const UnaryRow exp = k.unary[static_cast<int>(Unary::exp)][t];
  const auto number = [&](double value, Element* to) {
    if (x.dtype() == DType::float64) {
      to->f64 = value;
    } else {
      to->f32 = static_cast<float>(value);
    }
  };
  const int64_t grain = std::max<int64_t>(1, kGrain / (4 * n)), pieces = ceil_div(rows, grain);
  const Scratch memory = scratch({std::min<int64_t>(pieces, num_threads()), n, size},
                                 "softmax: cannot allocate a row for each thread");
  const int64_t parts = std::min<int64_t>(pieces, num_threads());
  parallel_for(parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      char* spare = memory.get() + part * n * size;
      for (int64_t r = rows * part / parts; r < rows * (part + 1) / parts; ++r) {
        const char* from = x.data() + r * n * size;
        char* to = out.data() + r * n * size;
        // Kernels never write to memory that they read.
        char *shifted = log ? spare : to, *terms = log ? to : spare;
        Element top, total;
        std::memcpy(&top, from, size);
        largest(from, 1, &top, n);
        subtract(from, 1, &top, 0, shifted, n);
        exp(shifted, 1, terms, n);
        double sum = 0;
        add(terms, 1, &sum, n);
        number(log ? std::log(sum) : sum, &total);
        (log ? subtract : divide)(log ? shifted : terms, 1, &total, 0, to, n);
      }
    }
  });
  return true;
}

}  // namespace device
}  // namespace needle
