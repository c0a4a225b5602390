#include "cpu/grid.h"

#include <algorithm>
#include <cstring>

#include "common/functions.h"
#include "cpu/grid_kernels.h"
#include "cpu/lines.h"

namespace needle {

namespace {

template <class E>
E named(const std::string& name, const char* const (&names)[3], const char* what) {
  for (int i = 0; i < 3; ++i)
    if (name == names[i]) return static_cast<E>(i);
  throw std::invalid_argument("grid_sample: " + std::string(what) + " '" + name + "' is unknown");
}

GridPlan plan(const View& x, const View& grid, const Sampling& how) {
  GridPlan q;
  q.mode = named<GridMode>(how.mode, {"bilinear", "nearest", "bicubic"}, "mode");
  q.padding = named<GridPadding>(how.padding, {"zeros", "border", "reflection"}, "padding");
  q.align_corners = how.align_corners;
  q.axes = x.ndim() - 2;
  bool fits = (q.axes == 2 || q.axes == 3) && grid.ndim() == x.ndim() &&
              (x.dtype() == DType::float32 || x.dtype() == DType::float64) &&
              x.dtype() == grid.dtype() && grid.shape()[x.ndim() - 1] == q.axes &&
              grid.shape()[0] == x.shape()[0] && (q.axes == 2 || q.mode != GridMode::bicubic);
  q.plane = q.points = q.corners = 1;
  q.taps = q.mode == GridMode::nearest ? 1 : q.mode == GridMode::bilinear ? 2 : 4;
  for (int i = q.axes - 1; fits && i >= 0; --i) {
    q.size[i] = x.shape()[2 + i];
    q.step[i] = q.plane;
    fits = q.size[i] > 0 && !__builtin_mul_overflow(q.plane, q.size[i], &q.plane) &&
           q.plane <= INT32_MAX;
    q.points *= grid.shape()[1 + i];
    q.corners *= q.taps;
  }
  if (!fits)
    throw std::invalid_argument("grid_sample: x " + x.shape().str() + " and grid " +
                                grid.shape().str() + " do not match");
  q.channels = x.shape()[1];
  return q;
}

// Runs fn(image, first point, number of points) over blocks of the points of all images.
template <class F>
void each_block(const GridPlan& q, int64_t batch, F&& fn) {
  const int64_t blocks = (q.points + kGridBlock - 1) / kGridBlock;
  const int64_t work = kGridBlock * q.corners * (q.channels + 4);
  parallel_for(batch * blocks, std::max<int64_t>(1, kLineGrain / work),
               [&](int64_t begin, int64_t end) {
                 for (int64_t task = begin; task < end; ++task) {
                   const int64_t first = task % blocks * kGridBlock;
                   fn(task / blocks, first, std::min(kGridBlock, q.points - first));
                 }
               });
}

}  // namespace

View grid_sample(const View& given, const View& given_grid, const Sampling& how) {
  const GridPlan q = plan(given, given_grid, how);
  const View x = nd::compact(given), grid = nd::compact(given_grid);
  Dims shape;
  shape.push(x.shape()[0]);
  shape.push(q.channels);
  for (int i = 0; i < q.axes; ++i) shape.push(grid.shape()[1 + i]);
  View out = View::empty(x.dtype(), shape, x.device());
  if (out.size() == 0) return out;
  const int64_t size = itemsize(x.dtype());
  const GridKernels& k = grid_kernels(x.dtype());
  each_block(q, x.shape()[0], [&](int64_t n, int64_t first, int64_t count) {
    k.sample(q, x.data() + n * q.channels * q.plane * size,
             grid.data() + (n * q.points + first) * q.axes * size, count,
             out.data() + (n * q.channels * q.points + first) * size);
  });
  return out;
}

std::pair<View, View> grid_sample_grad(const View& given_grad, const View& given,
                                       const View& given_grid, const Sampling& how) {
  const GridPlan q = plan(given, given_grid, how);
  bool fits = given_grad.ndim() == given.ndim() && given_grad.dtype() == given.dtype();
  for (int i = 0; fits && i < given.ndim(); ++i)
    fits = given_grad.shape()[i] == (i < 2 ? given.shape()[i] : given_grid.shape()[i - 1]);
  if (!fits)
    throw std::invalid_argument("grid_sample_grad: gradient " + given_grad.shape().str() +
                                " does not belong to the result");
  const View x = nd::compact(given), grid = nd::compact(given_grid);
  const View grad = nd::compact(given_grad);
  View to_x = View::empty(x.dtype(), x.shape(), x.device());
  View to_grid = View::empty(x.dtype(), grid.shape(), x.device());
  const int64_t size = itemsize(x.dtype()), batch = x.shape()[0];
  const GridKernels& k = grid_kernels(x.dtype());
  // Threads divide the channels of x, so no two threads write to one element.
  const int64_t work = std::max<int64_t>(1, q.points * q.corners);
  parallel_for(
      batch * q.channels, std::max<int64_t>(1, kLineGrain / work), [&](int64_t begin, int64_t end) {
        std::memset(to_x.data() + begin * q.plane * size, 0, (end - begin) * q.plane * size);
        for (int64_t line = begin; line < end;) {
          const int64_t n = line / q.channels;
          const int64_t lines = std::min(end, (n + 1) * q.channels) - line;
          for (int64_t first = 0; first < q.points; first += kGridBlock)
            k.spread(q, grad.data() + (line * q.points + first) * size,
                     grid.data() + (n * q.points + first) * q.axes * size,
                     std::min(kGridBlock, q.points - first), lines,
                     to_x.data() + line * q.plane * size);
          line += lines;
        }
      });
  if (to_grid.size() == 0) return {to_x, to_grid};
  each_block(q, batch, [&](int64_t n, int64_t first, int64_t count) {
    k.slopes(q, grad.data() + (n * q.channels * q.points + first) * size,
             x.data() + n * q.channels * q.plane * size,
             grid.data() + (n * q.points + first) * q.axes * size, count,
             to_grid.data() + (n * q.points + first) * q.axes * size);
  });
  return {to_x, to_grid};
}

}  // namespace needle
