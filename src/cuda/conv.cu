// Convolution over (N, H, W, C) and its gradients as matmuls with the matrix of windows. The matrix
// is made chunk by chunk, because it is as large as the image times the window.
#include "cuda/gemm.h"
#include "cuda/kernels.h"

namespace needle {
namespace cuda {

constexpr int64_t kChunkBytes = 64 << 20;

// An axis of a Plan, as an argument of kernels.
struct Window {
  int64_t size, count, stride, dilation, taps, low;

  explicit Window(const Axis& a)
      : size(a.size),
        count(a.count),
        stride(a.stride),
        dilation(a.dilation),
        taps(a.taps),
        low(a.low) {}
};

struct Strides {
  int64_t image, row, column, channel;
};

// Writes columns[pixel][tap row][tap column][channel] for `count` pixels from `first` on, or 0 for
// padding. I is the index type for `columns` and for pixels; 32-bit integers divide faster.
template <class S, class I>
__global__ void __launch_bounds__(kThreads)
    windows_kernel(Window y, Window x, int64_t channels, Strides at, const S* image, int64_t first,
                   int64_t count, S* columns) {
  const I across = static_cast<I>(x.count), down = static_cast<I>(y.count);
  const I taps = static_cast<I>(x.taps), depth = static_cast<I>(y.taps * x.taps * channels);
  const int64_t total = count * static_cast<int64_t>(depth);
  for (int64_t i = grid_index(); i < total; i += grid_step()) {
    const I n = static_cast<I>(i), rest = n % depth, tap = rest / static_cast<I>(channels);
    const int64_t channel = rest - tap * static_cast<I>(channels);
    const I pixel = static_cast<I>(first) + n / depth, line = pixel / across,
            image_at = line / down;
    const int64_t row = static_cast<int64_t>(line - image_at * down) * y.stride + y.low +
                        static_cast<int64_t>(tap / taps) * y.dilation;
    const int64_t column = static_cast<int64_t>(pixel - line * across) * x.stride + x.low +
                           static_cast<int64_t>(tap % taps) * x.dilation;
    const bool inside = row >= 0 && row < y.size && column >= 0 && column < x.size;
    columns[i] = inside ? image[static_cast<int64_t>(image_at) * at.image + row * at.row +
                                column * at.column + channel * at.channel]
                        : S(0);
  }
}

// Each element of `images` images sums the contributions of windows, in the order of the taps.
template <class S, class I>
__global__ void __launch_bounds__(kThreads)
    sum_windows_kernel(Window y, Window x, int64_t channels, int64_t images, const S* columns,
                       S* out) {
  const I deep = static_cast<I>(channels), wide = static_cast<I>(x.size);
  const I high = static_cast<I>(y.size);
  const int64_t total = images * y.size * x.size * channels;
  for (int64_t i = grid_index(); i < total; i += grid_step()) {
    const I n = static_cast<I>(i), pixel = n / deep, line = pixel / wide, image = line / high;
    const int64_t channel = n - pixel * deep;
    const int64_t column = static_cast<int64_t>(pixel - line * wide) - x.low;
    const int64_t row = static_cast<int64_t>(line - image * high) - y.low;
    S sum = S(0);
    for (int64_t p = 0; p < y.taps; ++p) {
      const int64_t from_row = row - p * y.dilation;
      if (from_row < 0 || from_row % y.stride != 0 || from_row / y.stride >= y.count) continue;
      for (int64_t q = 0; q < x.taps; ++q) {
        const int64_t from = column - q * x.dilation;
        if (from < 0 || from % x.stride != 0 || from / x.stride >= x.count) continue;
        const int64_t window = (image * y.count + from_row / y.stride) * x.count + from / x.stride;
        sum += columns[((window * y.taps + p) * x.taps + q) * channels + channel];
      }
    }
    out[i] = sum;
  }
}

// Launches the kernel with 32-bit indices if `total` fits, otherwise the one with 64-bit indices.
template <class... P, class... A>
void launch_counting(const Work& work, int64_t total, void (*few)(P...), void (*many)(P...),
                     A... arguments) {
  const Grid grid = grid_for(work.device(), total, kThreads);
  work.launch(total <= UINT32_MAX ? few : many, grid, kThreads, arguments...);
}

const Loop<2>& once() {
  static const Loop<2> loop{Dims(), {Dims(), Dims()}};
  return loop;
}

int64_t chunk_of(const Plan& p, int64_t per) {
  return std::max<int64_t>(1, kChunkBytes / product({p.depth(), p.size, per}));
}

// Whether windows are single, adjacent pixels, so that the image is the matrix of windows.
bool is_matrix(const Plan& p, const View& x) {
  const auto plain = [](const Axis& a) {
    return a.taps == 1 && a.stride == 1 && a.low == 0 && a.count == a.size;
  };
  return plain(p.y) && plain(p.x) && x.is_compact();
}

void gather_windows(const Work& work, const Plan& p, const View& x, int64_t first, int64_t count,
                    const Scratch& columns) {
  const Dims& s = x.strides();
  with_real(p.dtype, [&](auto type) {
    using S = typename decltype(type)::type;
    launch_counting(work, std::max(count * p.depth(), first + count), windows_kernel<S, uint32_t>,
                    windows_kernel<S, int64_t>, Window(p.y), Window(p.x), p.c,
                    Strides{s[0], s[1], s[2], s[3]}, data_of<const S>(x), first, count,
                    columns.as<S>());
  });
}

}  // namespace cuda

namespace device {

using namespace cuda;

void conv2d(const Plan& p, const View& x, const View& weight, const View& out) {
  const int64_t pixels = p.n * p.pixels(), depth = p.depth();
  GemmArgs g{pixels, p.o, depth, x.data(), depth, 1, weight.data(), p.o, 1, out.data(), p.o};
  if (is_matrix(p, x))
    return multiply(Work("conv2d", {&x, &weight, &out}), g, p.dtype, once(), false);
  const int64_t chunk = std::min(chunk_of(p, 1), pixels);
  const Scratch columns("conv2d", x.device(), {chunk, depth, p.size});
  const Work work("conv2d", {&x, &weight, &out});
  g.a = columns.get();
  for (int64_t first = 0; first < pixels; first += chunk) {
    g.m = std::min(chunk, pixels - first);
    g.c = out.data() + first * p.o * p.size;
    gather_windows(work, p, x, first, g.m, columns);
    multiply(work, g, p.dtype, once(), false);
  }
}

void conv2d_input(const Plan& p, const View& grad, const View& weight, const View& out) {
  const int64_t depth = p.depth();
  const int64_t chunk = std::min(chunk_of(p, p.pixels()), p.n);  // images per chunk
  const Scratch columns("conv2d_input", out.device(), {chunk, p.pixels(), depth, p.size});
  const Work work("conv2d_input", {&grad, &weight, &out});
  for (int64_t first = 0; first < p.n; first += chunk) {
    const int64_t images = std::min(chunk, p.n - first), pixels = images * p.pixels();
    const char* from = grad.data() + first * p.pixels() * p.o * p.size;
    const GemmArgs g{pixels, depth, p.o, from, p.o, 1, weight.data(), 1, p.o, columns.get(), depth};
    multiply(work, g, p.dtype, once(), false);
    with_real(p.dtype, [&](auto type) {
      using S = typename decltype(type)::type;
      const int64_t image = p.y.size * p.x.size * p.c;
      launch_counting(work, images * image, sum_windows_kernel<S, uint32_t>,
                      sum_windows_kernel<S, int64_t>, Window(p.y), Window(p.x), p.c, images,
                      columns.as<const S>(), data_of<S>(out) + first * image);
    });
  }
}

void conv2d_weight(const Plan& p, const View& x, const View& grad, bool whole, const View& out) {
  const char* what = "conv2d_weight";
  const int64_t pixels = p.n * p.pixels(), depth = p.depth();
  const Dims& s = out.strides();
  const View target(out.buffer(), p.dtype, Plan::dims(p.y.taps, p.x.taps, p.c, p.o), s,
                    p.y.first * s[0] + p.x.first * s[1]);
  const View made = whole ? target : View::empty(p.dtype, target.shape(), out.device());
  GemmArgs g{depth, p.o, pixels, x.data(), 1, depth, grad.data(), p.o, 1, made.data(), p.o};
  if (is_matrix(p, x)) {
    multiply(Work(what, {&x, &grad, &made}), g, p.dtype, once(), false);
  } else {
    const int64_t chunk = std::min(chunk_of(p, 1), pixels);
    const Scratch columns(what, x.device(), {chunk, depth, p.size});
    const Work work(what, {&x, &grad, &made});
    g.a = columns.get();
    for (int64_t first = 0; first < pixels; first += chunk) {
      g.k = std::min(chunk, pixels - first);
      g.b = grad.data() + first * p.o * p.size;
      gather_windows(work, p, x, first, g.k, columns);
      multiply(work, g, p.dtype, once(), first > 0);
    }
  }
  if (!whole) nd::copy(made, target);
}

}  // namespace device
}  // namespace needle
