// Whole layers in one or two passes over memory: batch normalisation and the LSTM's gates.
#include "cuda/kernels.h"

namespace needle {
namespace cuda {

constexpr int kColumns = 32, kRows = 8;  // the threads of a block of column_sums
constexpr int64_t kMaxChunks = 256;

// An array as rows of n adjacent elements, `step` apart; null means no array.
template <class T>
struct Rows {
  const T* p;
  int64_t step;

  NEEDLE_HD T at(int64_t row, int64_t column) const { return p[row * step + column]; }
};

// The terms to sum over the rows, in double.
enum class Sum { plain, squares, products };

// sums[chunk][which][column] is the sum over the chunk's rows of x (plain), of (x - mean)^2
// (squares), or of g and of g (x - mean) (products).
template <class T, class M, Sum kSum>
__global__ void __launch_bounds__(kColumns* kRows)
    column_sums(Rows<T> g, Rows<T> x, const M* mean, int64_t rows, int64_t n, double* sums) {
  constexpr int kOf = kSum == Sum::products ? 2 : 1;
  __shared__ double held[kOf][kRows][kColumns];
  const int tx = threadIdx.x % kColumns, ty = threadIdx.x / kColumns;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kColumns + tx;
  const int64_t from = rows * blockIdx.y / gridDim.y, to = rows * (blockIdx.y + 1) / gridDim.y;
  double sum[kOf] = {};
  if (column < n) {
    const double middle = kSum == Sum::plain ? 0.0 : static_cast<double>(mean[column]);
    for (int64_t r = from + ty; r < to; r += kRows) {
      const double d = x.at(r, column) - middle;
      if constexpr (kSum == Sum::plain) {
        sum[0] += d;
      } else if constexpr (kSum == Sum::squares) {
        sum[0] += d * d;
      } else {
        const double share = g.at(r, column);
        sum[0] += share;
        sum[1] += share * d;
      }
    }
  }
  for (int k = 0; k < kOf; ++k) held[k][ty][tx] = sum[k];
  __syncthreads();
  if (ty != 0 || column >= n) return;
  for (int k = 0; k < kOf; ++k) {
    double all = 0;
    for (int r = 0; r < kRows; ++r) all += held[k][r][tx];
    sums[(static_cast<int64_t>(blockIdx.y) * kOf + k) * n + column] = all;
  }
}

NEEDLE_HD inline double total(const double* sums, int64_t chunks, int64_t stride, int64_t i) {
  double all = 0;
  for (int64_t c = 0; c < chunks; ++c) all += sums[c * stride + i];
  return all;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    find_mean(const double* sums, int64_t chunks, int64_t rows, int64_t n, double* wide, T* mean) {
  for (int64_t i = grid_index(); i < n; i += grid_step()) {
    wide[i] = total(sums, chunks, n, i) / static_cast<double>(rows);
    mean[i] = static_cast<T>(wide[i]);
  }
}

// scale = weight / sqrt(variance + eps)
template <class T>
__global__ void __launch_bounds__(kThreads)
    find_scale(const double* sums, int64_t chunks, int64_t rows, int64_t n, const T* weight,
               double eps, T* variance, T* scale) {
  for (int64_t i = grid_index(); i < n; i += grid_step()) {
    const double found = total(sums, chunks, n, i) / static_cast<double>(rows);
    variance[i] = static_cast<T>(found);
    scale[i] = static_cast<T>(weight[i] / ::sqrt(found + eps));
  }
}

// Computes, for x' = (x - mean) r, the gradients for weight and bias, and rows a, b, c such that
// w r (g - mean(g) - x' mean(g x')) = a (g - c) + b (x - mean).
template <class T>
__global__ void __launch_bounds__(kThreads)
    find_factors(const double* sums, int64_t chunks, int64_t rows, int64_t n, const T* weight,
                 const T* variance, double eps, T* to_weight, T* to_bias, T* abc) {
  for (int64_t i = grid_index(); i < n; i += grid_step()) {
    const double r = 1 / ::sqrt(variance[i] + eps), factor = weight[i] * r;
    const double plain = total(sums, chunks, 2 * n, i);
    const double along = total(sums, chunks, 2 * n, n + i) * r;
    to_weight[i] = static_cast<T>(along);
    to_bias[i] = static_cast<T>(plain);
    abc[i] = static_cast<T>(factor);
    abc[n + i] = static_cast<T>(-factor * r * along / static_cast<double>(rows));
    abc[2 * n + i] = static_cast<T>(plain / static_cast<double>(rows));
  }
}

// out = a (g - c) + b (x - mean), where a, b, c and mean are rows; b (x - mean) + c if there is no
// g. Subtracting first avoids cancellation between large terms.
template <class T>
__global__ void __launch_bounds__(kThreads)
    affine(Rows<T> g, const T* a, Rows<T> x, const T* mean, const T* b, const T* c, int64_t rows,
           int64_t n, T* out) {
  const int64_t all = rows * n;
  for (int64_t i = grid_index(); i < all; i += grid_step()) {
    const int64_t row = i / n, k = i % n;
    const T centred = b[k] * (x.at(row, k) - mean[k]);
    out[i] = centred + (g.p == nullptr ? c[k] : a[k] * (g.at(row, k) - c[k]));
  }
}

template <class T>
Rows<T> rows_of(const Matrix& m) {
  return {data_of<const T>(m.view), m.step};
}

struct Chunks {
  Grid grid;
  int64_t count;

  Chunks(int64_t rows, int64_t n) {
    const int64_t across = ceil_div(n, kColumns);
    count = std::clamp<int64_t>(std::min(512 / across, rows / (8 * kRows)), 1, kMaxChunks);
    grid = {static_cast<unsigned>(across), static_cast<unsigned>(count)};
  }
};

// The gates of one LSTM cell, whose four sums (i, f, g, o) are n elements apart.
template <class T>
struct Gates {
  T i, f, g, o;

  NEEDLE_HD Gates(const T* sums, int64_t n)
      : i(fn::sigmoid::at(sums[0])),
        f(fn::sigmoid::at(sums[n])),
        g(fn::tanh::at(sums[2 * n])),
        o(fn::sigmoid::at(sums[3 * n])) {}
};

// sums = a + b, if both are given.
template <class T>
__global__ void __launch_bounds__(kThreads)
    lstm_kernel(const T* a, const T* b, T* sums, const T* cell, int64_t total, int64_t n, T* h,
                T* c) {
  for (int64_t i = grid_index(); i < total; i += grid_step()) {
    const int64_t first = i / n * 4 * n + i % n;
    if (a != nullptr)
      for (int k = 0; k < 4; ++k) sums[first + k * n] = a[first + k * n] + b[first + k * n];
    const Gates<T> gates(sums + first, n);
    const T next = gates.f * cell[i] + gates.i * gates.g;
    c[i] = next;
    h[i] = gates.o * fn::tanh::at(next);
  }
}

// The gradients for h' and c' are gh + more_h and gc + more_c; null means no gradient.
template <class T>
__global__ void __launch_bounds__(kThreads)
    lstm_grad_kernel(const T* sums, const T* cell, const T* next, const T* gh, const T* more_h,
                     const T* gc, const T* more_c, int64_t total, int64_t n, T* to_sums,
                     T* to_cell) {
  for (int64_t i = grid_index(); i < total; i += grid_step()) {
    const int64_t first = i / n * 4 * n + i % n;
    const Gates<T> y(sums + first, n);
    const T t = fn::tanh::at(next[i]);
    const T of_h = (gh == nullptr ? T(0) : gh[i]) + (more_h == nullptr ? T(0) : more_h[i]);
    const T direct = (gc == nullptr ? T(0) : gc[i]) + (more_c == nullptr ? T(0) : more_c[i]);
    const T of_c = direct + of_h * y.o * (T(1) - t * t);
    to_sums[first] = of_c * y.g * y.i * (T(1) - y.i);
    to_sums[first + n] = of_c * cell[i] * y.f * (T(1) - y.f);
    to_sums[first + 2 * n] = of_c * y.i * (T(1) - y.g * y.g);
    to_sums[first + 3 * n] = of_h * t * y.o * (T(1) - y.o);
    to_cell[i] = of_c * y.f;
  }
}

void run_lstm(const char* what, const View* a, const View* b, const View& sums, const View& cell,
              const View& h, const View& c) {
  const Work work(what, {a, b, &sums, &cell, &h, &c});
  with_real(cell.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    work.launch(lstm_kernel<T>, grid_for(work.device(), cell.size(), kThreads), kThreads,
                a != nullptr ? data_of<const T>(*a) : nullptr,
                b != nullptr ? data_of<const T>(*b) : nullptr, data_of<T>(sums),
                data_of<const T>(cell), cell.size(), cell.shape()[1], data_of<T>(h), data_of<T>(c));
  });
}

void run_lstm_grad(const char* what, const View& sums, const View& cell, const View& next,
                   const View* gh, const View* more_h, const View* gc, const View* more_c,
                   const View& to_sums, const View& to_cell) {
  const Work work(what, {&sums, &cell, &next, gh, more_h, gc, more_c, &to_sums, &to_cell});
  with_real(cell.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    const auto maybe = [](const View* v) { return v != nullptr ? data_of<const T>(*v) : nullptr; };
    work.launch(lstm_grad_kernel<T>, grid_for(work.device(), cell.size(), kThreads), kThreads,
                data_of<const T>(sums), data_of<const T>(cell), data_of<const T>(next), maybe(gh),
                maybe(more_h), maybe(gc), maybe(more_c), cell.size(), cell.shape()[1],
                data_of<T>(to_sums), data_of<T>(to_cell));
  });
}

}  // namespace cuda

namespace device {

using namespace cuda;

void batch_norm(const Matrix& x, const View& weight, const View& bias, double eps,
                const Normalized& out) {
  const char* what = "batch_norm";
  const int64_t n = x.columns;
  const int on = x.view.device();
  const Chunks chunks(x.rows, n);
  const Scratch memory(what, on, {chunks.count + 1, n, int64_t{sizeof(double)}});
  const Scratch scales(what, on, {n, itemsize(x.view.dtype())});
  double *wide = memory.as<double>(), *sums = wide + n;
  const Work work(what, {&x.view, &weight, &bias, &out.y, &out.mean, &out.variance});
  const Grid across = grid_for(on, n, kThreads);
  with_real(x.view.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    const Rows<T> rows = rows_of<T>(x), none{nullptr, 0};
    T *mean = data_of<T>(out.mean), *scale = scales.as<T>();
    work.launch(column_sums<T, double, Sum::plain>, chunks.grid, kColumns * kRows, none, rows,
                nullptr, x.rows, n, sums);
    work.launch(find_mean<T>, across, kThreads, sums, chunks.count, x.rows, n, wide, mean);
    work.launch(column_sums<T, double, Sum::squares>, chunks.grid, kColumns * kRows, none, rows,
                wide, x.rows, n, sums);
    work.launch(find_scale<T>, across, kThreads, sums, chunks.count, x.rows, n,
                data_of<const T>(weight), eps, data_of<T>(out.variance), scale);
    work.launch(affine<T>, grid_for(on, x.rows * n, kThreads), kThreads, none, nullptr, rows, mean,
                scale, data_of<const T>(bias), x.rows, n, data_of<T>(out.y));
  });
}

void batch_norm_grad(const Matrix& grad, const Matrix& x, const View& weight, const View& mean,
                     const View& variance, double eps, const Normalized& out) {
  const char* what = "batch_norm_grad";
  const int64_t n = x.columns;
  const int on = x.view.device();
  const Chunks chunks(x.rows, n);
  const Scratch memory(what, on, {chunks.count, 2, n, int64_t{sizeof(double)}});
  const Scratch factors(what, on, {3, n, itemsize(x.view.dtype())});
  double* sums = memory.as<double>();
  const Work work(
      what, {&grad.view, &x.view, &weight, &mean, &variance, &out.y, &out.mean, &out.variance});
  with_real(x.view.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    const Rows<T> g = rows_of<T>(grad), rows = rows_of<T>(x);
    T* abc = factors.as<T>();
    work.launch(column_sums<T, T, Sum::products>, chunks.grid, kColumns * kRows, g, rows,
                data_of<const T>(mean), x.rows, n, sums);
    work.launch(find_factors<T>, grid_for(on, n, kThreads), kThreads, sums, chunks.count, x.rows, n,
                data_of<const T>(weight), data_of<const T>(variance), eps, data_of<T>(out.mean),
                data_of<T>(out.variance), abc);
    work.launch(affine<T>, grid_for(on, x.rows * n, kThreads), kThreads, g, abc, rows,
                data_of<const T>(mean), abc + n, abc + 2 * n, x.rows, n, data_of<T>(out.y));
  });
}

void lstm_gates(const View& sums, const View& cell, const View& h, const View& c) {
  run_lstm("lstm_gates", nullptr, nullptr, sums, cell, h, c);
}

void lstm_gates_grad(const View& sums, const View& cell, const View& next, const View* grad_h,
                     const View* grad_c, const View& to_sums, const View& to_cell) {
  run_lstm_grad("lstm_gates_grad", sums, cell, next, grad_h, nullptr, grad_c, nullptr, to_sums,
                to_cell);
}

void lstm_step(const View& input, const View& from_state, const View& cell, const View& sums,
               const View& h, const View& c) {
  run_lstm("lstm_sequence", &input, &from_state, sums, cell, h, c);
}

void lstm_step_grad(const View& sums, const View& cell, const View& next, const View* grad_h,
                    const View* grad_c, const View& to_h, const View& to_c, const View& to_sums,
                    const View& to_cell) {
  run_lstm_grad("lstm_sequence_grad", sums, cell, next, &to_h, grad_h, &to_c, grad_c, to_sums,
                to_cell);
}

bool softmax(const View&, bool, const View&) { return false; }

}  // namespace device
}  // namespace needle
