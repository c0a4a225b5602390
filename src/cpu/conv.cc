// Convolution over (N, H, W, C) with a weight (kh, kw, C, O), and its two gradients. They are
// matmuls whose axes are pixels, taps with channels, and outputs. Their register tiles read the
// image itself, so no matrix of windows is made. A thread copies its part of the image only if
// there is padding, or if channels are not contiguous.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "common/device.h"
#include "cpu/kernel_table.h"
#include "cpu/scratch.h"
#include "threads/thread_pool.h"

namespace needle {
namespace device {

namespace {

constexpr int64_t kPixels = 96;             // outputs per unit of work: a multiple of every tile
constexpr int64_t kParallelWork = 1 << 18;  // multiply-adds below which threads do not pay off
constexpr const char* kNoScratch = "conv2d: cannot allocate memory to work in";

const GemmKernels& kernel_of(const Plan& p) { return kernels().gemm[static_cast<int>(p.dtype)]; }

bool is_parallel(const Plan& p) {
  const double pixels = static_cast<double>(p.n * p.pixels());
  return pixels * static_cast<double>(p.depth() * p.o) >= kParallelWork;
}

// The strides of images, in elements; channels are contiguous.
struct Layout {
  int64_t image, row, column;
};

// The contiguous runs of a window: one per row of taps if the taps are adjacent, else one per tap.
struct Runs {
  std::vector<int64_t> at, weight;  // starts in the image, and rows of the weight matrix
  int64_t length;

  Runs(const Plan& p, const Layout& layout) {
    const bool merged = p.x.taps == 1 || (p.x.dilation == 1 && layout.column == p.c);
    length = merged ? p.x.taps * p.c : p.c;
    for (int64_t i = 0; i < p.y.taps; ++i)
      for (int64_t j = 0; j < (merged ? 1 : p.x.taps); ++j) {
        at.push_back(i * p.y.dilation * layout.row + j * p.x.dilation * layout.column);
        weight.push_back((i * p.x.taps + j) * p.c);
      }
  }
  int64_t count() const { return static_cast<int64_t>(at.size()); }
};

// Copies a row of the area that the taps reach, with zeros as padding.
void copy_row(const Plan& p, const View& x, CastRow move, int64_t image, int64_t row, char* to) {
  const int64_t pixel = p.c * p.size, y = p.y.low + row;
  const int64_t begin = std::max<int64_t>(p.x.low, 0);
  const int64_t end = std::min(p.x.low + p.x.extent, p.x.size);
  if (y < 0 || y >= p.y.size || begin >= end) {
    std::memset(to, 0, static_cast<size_t>(p.x.extent * pixel));
    return;
  }
  const Dims& s = x.strides();
  const char* from = x.data() + (image * s[0] + y * s[1] + begin * s[2]) * p.size;
  const int64_t left = begin - p.x.low, count = end - begin;
  std::memset(to, 0, static_cast<size_t>(left * pixel));
  to += left * pixel;
  if (s[3] == 1 && s[2] == p.c) {
    std::memcpy(to, from, static_cast<size_t>(count * pixel));
  } else if (s[3] == 1 || p.c > count) {
    for (int64_t i = 0; i < count; ++i)
      move(from + i * s[2] * p.size, s[3], to + i * pixel, 1, p.c);
  } else {
    for (int64_t i = 0; i < p.c; ++i)
      move(from + i * s[3] * p.size, s[2], to + i * p.size, p.c, count);
  }
  std::memset(to + count * pixel, 0, static_cast<size_t>((p.x.extent - left - count) * pixel));
}

// The panels of a row-major B (rows x columns): read in place, except for a last panel that is not
// full, which is packed.
class Panels {
 public:
  Panels(const GemmKernels& kernel, const char* b, int64_t rows, int64_t columns, int64_t size)
      : nr_(kernel.nr), columns_(columns), size_(size), b_(b) {
    const int64_t tail = columns % nr_;
    if (tail == 0) return;
    last_ = scratch({rows, nr_, size}, kNoScratch);
    kernel.pack_b(b + (columns - tail) * size, columns, 1, rows, static_cast<int>(tail),
                  last_.get());
  }
  int64_t count() const { return ceil_div(columns_, nr_); }
  int width(int64_t j) const { return static_cast<int>(std::min(nr_, columns_ - j * nr_)); }
  const char* data(int64_t j, int64_t row) const {
    return packed(j) ? last_.get() + row * nr_ * size_ : b_ + (row * columns_ + j * nr_) * size_;
  }
  int64_t ldb(int64_t j) const { return packed(j) ? nr_ : columns_; }

 private:
  bool packed(int64_t j) const { return last_ && j == count() - 1; }
  int64_t nr_, columns_, size_;
  const char* b_;
  Scratch last_;
};

// Runs fn over [0, n) on threads, and rethrows their allocation failures.
template <class F>
void share(int64_t n, bool parallel, F&& fn) {
  std::atomic<bool> failed{false};
  parallel_for(n, parallel ? 1 : n, [&](int64_t begin, int64_t end) {
    try {
      fn(begin, end);
    } catch (const std::bad_alloc&) {
      failed = true;
    }
  });
  if (failed) throw OutOfMemory(kNoScratch);
}

// The outputs, cut into units of about kPixels: several whole images, or several rows of one image.
struct Units {
  int64_t images, rows, bands, count;

  explicit Units(const Plan& p) {
    images = std::max<int64_t>(1, kPixels / p.pixels());
    rows = p.pixels() <= kPixels ? p.y.count : std::max<int64_t>(1, kPixels / p.x.count);
    bands = ceil_div(p.y.count, rows);
    count = ceil_div(p.n, images) * bands;
  }
};

struct Unit {
  int64_t image, images, row, rows;

  Unit(const Plan& p, const Units& units, int64_t index) {
    image = index / units.bands * units.images;
    images = std::min(units.images, p.n - image);
    row = index % units.bands * units.rows;
    rows = std::min(units.rows, p.y.count - row);
  }
  int64_t pixels(const Plan& p) const { return images * rows * p.x.count; }
};

// Calls fn(start of the window, in elements) for each output of a unit, in order.
template <class F>
void each_window(const Plan& p, const Layout& layout, int64_t images, int64_t rows, F&& fn) {
  for (int64_t b = 0; b < images; ++b)
    for (int64_t y = 0; y < rows; ++y)
      for (int64_t x = 0; x < p.x.count; ++x)
        fn(b * layout.image + y * p.y.stride * layout.row + x * p.x.stride * layout.column);
}

// Whether the tiles can read x in place.
bool readable(const Plan& p, const View& x) {
  return p.y.inside() && p.x.inside() && (x.strides()[3] == 1 || p.c == 1);
}

}  // namespace

void conv2d(const Plan& p, const View& x, const View& weight, const View& out) {
  const GemmKernels& kernel = kernel_of(p);
  const Panels panels(kernel, weight.data(), p.depth(), p.o, p.size);
  const bool direct = readable(p, x);
  const int64_t mr = kernel.mr, nr = kernel.nr, line = p.x.extent * p.c;
  const CastRow move = kernels().cast[static_cast<int>(p.dtype)][static_cast<int>(p.dtype)];
  const Units units(p);
  const int64_t reach = (units.rows - 1) * p.y.stride + (p.y.taps - 1) * p.y.dilation + 1;
  const Dims& s = x.strides();
  const Layout layout = direct ? Layout{s[0], s[1], s[2]} : Layout{reach * line, line, p.c};
  const Runs runs(p, layout);
  const int64_t chunk = std::max<int64_t>(1, kDepth / runs.length);
  const bool parallel = is_parallel(p);
  // With few units, threads also divide the units' columns.
  const int64_t columns =
      std::clamp<int64_t>(parallel ? 2 * num_threads() / units.count : 1, 1, panels.count());
  share(units.count * columns, parallel, [&](int64_t begin, int64_t end) {
    const int64_t most = units.images * units.rows * p.x.count;
    Scratch pointers = scratch({most, int64_t{sizeof(void*)}}, kNoScratch);
    const void** windows = reinterpret_cast<const void**>(pointers.get());
    Scratch copy = scratch({direct ? 0 : units.images, layout.image, p.size}, kNoScratch);
    int64_t present = -1;
    for (int64_t part = begin; part < end; ++part) {
      const Unit unit(p, units, part / columns);
      const int64_t pixels = unit.pixels(p), first_row = unit.row * p.y.stride;
      const char* from = copy.get();
      if (direct) {
        from =
            x.data() + (unit.image * s[0] + (p.y.low + first_row) * s[1] + p.x.low * s[2]) * p.size;
      } else if (present != part / columns) {
        const int64_t rows = (unit.rows - 1) * p.y.stride + (p.y.taps - 1) * p.y.dilation + 1;
        for (int64_t i = 0; i < unit.images; ++i)
          for (int64_t r = 0; r < rows; ++r)
            copy_row(p, x, move, unit.image + i, first_row + r,
                     copy.get() + (i * layout.image + r * layout.row) * p.size);
      }
      present = part / columns;
      int64_t m = 0;
      each_window(p, layout, unit.images, unit.rows,
                  [&](int64_t offset) { windows[m++] = from + offset * p.size; });
      char* to = out.data() + (unit.image * p.pixels() + unit.row * p.x.count) * p.o * p.size;
      const int64_t j0 = panels.count() * (part % columns) / columns;
      const int64_t j1 = panels.count() * (part % columns + 1) / columns;
      for (int64_t j = j0; j < j1; ++j)
        for (int64_t t = 0; t < runs.count(); t += chunk)
          for (int64_t i = 0; i < pixels; i += mr)
            kernel.tile_rows(std::min(chunk, runs.count() - t), runs.at.data() + t,
                             runs.weight.data() + t, runs.length, windows + i, panels.data(j, 0),
                             panels.ldb(j), to + (i * p.o + j * nr) * p.size, p.o, t > 0,
                             static_cast<int>(std::min(mr, pixels - i)), panels.width(j));
    }
  });
}

void conv2d_input(const Plan& p, const View& grad, const View& weight, const View& out) {
  const GemmKernels& kernel = kernel_of(p);
  const int64_t mr = kernel.mr, nr = kernel.nr, depth = p.depth();
  // The transposed weight, (O, taps and channels), in panels.
  const int64_t panels = ceil_div(depth, nr);
  Scratch packed = scratch({panels, p.o, nr, p.size}, kNoScratch);
  const bool parallel = is_parallel(p);
  parallel_for(panels, parallel ? 1 : panels, [&](int64_t begin, int64_t end) {
    for (int64_t j = begin; j < end; ++j)
      kernel.pack_b(weight.data() + j * nr * p.o * p.size, 1, p.o, p.o,
                    static_cast<int>(std::min(nr, depth - j * nr)),
                    packed.get() + j * p.o * nr * p.size);
  });
  const int64_t line = p.x.extent * p.c;
  const Layout layout{p.y.extent * line, line, p.c};
  const Runs runs(p, layout);
  const Units units(p);
  const AddToRow add = kernels().add_to[static_cast<int>(p.dtype)];
  const int64_t groups = ceil_div(p.n, units.images);
  // With few groups, threads also divide the rows of an image. Each thread sums all windows that
  // reach its rows, so windows across a border are computed twice.
  const int64_t strips =
      parallel && units.images == 1
          ? std::clamp<int64_t>(num_threads() / groups, 1, std::max<int64_t>(1, p.y.size))
          : 1;
  const int64_t reach = (p.y.taps - 1) * p.y.dilation + 1;
  share(groups * strips, parallel, [&](int64_t begin, int64_t end) {
    Scratch image = scratch({units.images, layout.image, p.size}, kNoScratch);
    Scratch columns = scratch({units.images * units.rows, p.x.count, depth, p.size}, kNoScratch);
    for (int64_t part = begin; part < end; ++part) {
      // Rows of the result, and the windows that reach them, numbered without padding.
      const int64_t y0 = p.y.size * (part % strips) / strips;
      const int64_t y1 = p.y.size * (part % strips + 1) / strips;
      // `before`: the last start of a window that ends before y0. A unit of several images contains
      // all of their windows.
      const int64_t before = strips == 1 ? -1 : y0 - p.y.low - reach;
      const int64_t first = before < 0 ? 0 : before / p.y.stride + 1;
      const int64_t after = ceil_div(std::max<int64_t>(y1 - p.y.low, 0), p.y.stride);
      const int64_t last = strips == 1 ? p.y.count : std::min(p.y.count, std::max(first, after));
      const int64_t top = first * p.y.stride;  // the first row of `image`
      std::memset(image.get(), 0, static_cast<size_t>(units.images * layout.image * p.size));
      Unit unit(p, units, part / strips * units.bands);
      for (unit.row = first; unit.row < last; unit.row += units.rows) {
        unit.rows = std::min(units.rows, last - unit.row);
        const int64_t pixels = unit.pixels(p);
        const char* from =
            grad.data() + (unit.image * p.pixels() + unit.row * p.x.count) * p.o * p.size;
        for (int64_t j = 0; j < panels; ++j)
          for (int64_t k = 0; k < p.o; k += kDepth)
            for (int64_t i = 0; i < pixels; i += mr) {
              const int rows = static_cast<int>(std::min(mr, pixels - i));
              const void* rows_at[kMaxTileRows];
              for (int r = 0; r < rows; ++r) rows_at[r] = from + (i + r) * p.o * p.size;
              kernel.tile_rows(1, &k, &k, std::min(kDepth, p.o - k), rows_at,
                               packed.get() + j * p.o * nr * p.size, nr,
                               columns.get() + (i * depth + j * nr) * p.size, depth, k > 0, rows,
                               static_cast<int>(std::min(nr, depth - j * nr)));
            }
        // Add each output's contribution at the position of its window.
        const char* share_of = columns.get();
        char* to = image.get() + (unit.row * p.y.stride - top) * layout.row * p.size;
        each_window(p, layout, unit.images, unit.rows, [&](int64_t offset) {
          for (int64_t t = 0; t < runs.count(); ++t)
            add(share_of + runs.weight[t] * p.size, 1, to + (offset + runs.at[t]) * p.size, 1,
                runs.length);
          share_of += depth * p.size;
        });
      }
      const int64_t left = std::max<int64_t>(p.x.low, 0);
      const int64_t end_column = std::max(left, std::min(p.x.low + p.x.extent, p.x.size));
      const int64_t pixel = p.c * p.size;
      for (int64_t i = 0; i < unit.images; ++i)
        for (int64_t y = y0; y < y1; ++y) {
          char* to = out.data() + ((unit.image + i) * p.y.size + y) * p.x.size * pixel;
          const int64_t row = y - p.y.low;
          if (row < top || row >= p.y.extent) {
            std::memset(to, 0, static_cast<size_t>(p.x.size * pixel));
            continue;
          }
          const char* from = image.get() + (i * layout.image + (row - top) * layout.row) * p.size +
                             (left - p.x.low) * pixel;
          std::memset(to, 0, static_cast<size_t>(left * pixel));
          std::memcpy(to + left * pixel, from, static_cast<size_t>((end_column - left) * pixel));
          std::memset(to + end_column * pixel, 0,
                      static_cast<size_t>((p.x.size - end_column) * pixel));
        }
    }
  });
}

void conv2d_weight(const Plan& p, const View& x, const View& grad, bool whole, const View& out) {
  const GemmKernels& kernel = kernel_of(p);
  const int64_t pixels = p.n * p.pixels(), mr = kernel.mr, nr = kernel.nr;
  const Panels panels(kernel, grad.data(), pixels, p.o, p.size);
  const bool direct = readable(p, x), parallel = is_parallel(p);
  const int64_t line = p.x.extent * p.c;
  const Dims& s = x.strides();
  const Layout layout = direct ? Layout{s[0], s[1], s[2]} : Layout{p.y.extent * line, line, p.c};
  Scratch copy = scratch({direct ? 0 : p.n, layout.image, p.size}, kNoScratch);
  const char* from = direct ? x.data() + (p.y.low * s[1] + p.x.low * s[2]) * p.size : copy.get();
  if (!direct) {
    const CastRow move = kernels().cast[static_cast<int>(p.dtype)][static_cast<int>(p.dtype)];
    const int64_t lines = p.n * p.y.extent;
    parallel_for(lines, parallel ? ceil_div(kGrain, line) : lines, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        copy_row(p, x, move, i / p.y.extent, i % p.y.extent, copy.get() + i * line * p.size);
    });
  }
  Scratch table = scratch({pixels, int64_t{sizeof(int64_t)}}, kNoScratch);
  int64_t* offsets = reinterpret_cast<int64_t*>(table.get());
  int64_t m = 0;
  each_window(p, layout, p.n, p.y.count, [&](int64_t offset) { offsets[m++] = offset; });
  const Runs runs(p, layout);
  const int64_t tiles = ceil_div(runs.length, mr);  // tiles per run
  const int64_t o = p.o;
  // Row k of the weight matrix is the k-th pair of tap and channel in the trimmed kernel.
  View target(out.buffer(), p.dtype, Plan::dims(p.y.taps, p.x.taps, p.c, p.o), out.strides(),
              p.y.first * out.strides()[0] + p.x.first * out.strides()[1]);
  View trimmed = whole ? target : View::empty(p.dtype, target.shape(), 0);
  parallel_for(
      runs.count() * tiles, parallel ? 1 : runs.count() * tiles, [&](int64_t begin, int64_t end) {
        for (int64_t q = 0; q < pixels; q += kDepth)
          for (int64_t tile = begin; tile < end; ++tile) {
            const int64_t run = tile / tiles, k = tile % tiles * mr;
            char* to = trimmed.data() + (runs.weight[run] + k) * o * p.size;
            for (int64_t j = 0; j < panels.count(); ++j)
              kernel.tile_columns(std::min(kDepth, pixels - q), from + (runs.at[run] + k) * p.size,
                                  offsets + q, panels.data(j, q), panels.ldb(j),
                                  to + j * nr * p.size, o, q > 0,
                                  static_cast<int>(std::min(mr, runs.length - k)), panels.width(j));
          }
      });
  if (!whole) nd::copy(trimmed, target);
}

}  // namespace device
}  // namespace needle
