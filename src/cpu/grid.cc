// Images read at points of a grid. A task takes a block of points: it finds the elements that each
// is made of, and their weights, once for all channels.
#include "cpu/grid.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "common/functions.h"
#include "cpu/lines.h"

namespace needle {

namespace {

constexpr int64_t kBlock = 128;  // points
constexpr int kMaxAxes = 3, kMaxTaps = 4, kMaxCorners = 16;

// The elements along one axis that the points of a block are made of. A place of -1 is outside.
template <class T>
struct Taps {
  int64_t at[kMaxTaps][kBlock];
  T weight[kMaxTaps][kBlock];
  T slope[kMaxTaps][kBlock];  // of the weight, by the point's coordinate
};

// The same of all axes together: elements of a channel, and products of weights.
template <class T>
struct Corners {
  int count;
  bool inside;  // no place is outside
  int64_t at[kMaxCorners][kBlock];
  T weight[kMaxCorners][kBlock];
};

struct Problem {
  int axes, taps, corners;
  int64_t batch, channels, plane = 1, points = 1;  // elements and points of a channel
  int64_t size[kMaxAxes], step[kMaxAxes];

  Problem(const View& x, const View& grid, const Sampling& how) {
    axes = x.ndim() - 2;
    bool fits = (axes == 2 || axes == 3) && grid.ndim() == x.ndim() && is_floating(x.dtype()) &&
                x.dtype() == grid.dtype() && grid.shape()[x.ndim() - 1] == axes &&
                grid.shape()[0] == x.shape()[0] &&
                (axes == 2 || how.mode != Sampling::bicubic);
    for (int i = 0; fits && i < axes; ++i) fits = x.shape()[2 + i] > 0;
    if (!fits)
      throw std::invalid_argument("grid_sample: x " + x.shape().str() + " and grid " +
                                  grid.shape().str() + " do not go together");
    batch = x.shape()[0];
    channels = x.shape()[1];
    for (int i = axes - 1; i >= 0; --i) {
      size[i] = x.shape()[2 + i];
      step[i] = plane;
      plane *= size[i];
      points *= grid.shape()[1 + i];
    }
    taps = how.mode == Sampling::nearest ? 1 : how.mode == Sampling::bilinear ? 2 : 4;
    corners = 1;
    for (int i = 0; i < axes; ++i) corners *= taps;
  }
};

// A place moved into an axis of extent n, and the factor of its slope.
template <class T>
T within(T place, int64_t n, const Sampling& how, T* slope) {
  if (how.padding == Sampling::zeros) return place;
  if (how.padding == Sampling::reflection) {
    const T low = how.align_corners ? T(0) : T(-0.5);
    const T span = static_cast<T>(how.align_corners ? n - 1 : n);
    if (span == 0) {
      *slope = 0;
      place = place * T(0);
    } else {
      const T far = std::abs(place - low), extra = std::fmod(far, span);
      const T turns = std::floor(far / span);
      const bool even = turns - 2 * std::floor(turns / 2) == 0;
      *slope *= (place < low ? T(-1) : place > low ? T(1) : T(0)) * (even ? T(1) : T(-1));
      place = (even ? extra : span - extra) + low;
    }
  }
  // NaN becomes 0, and the slope at a border is 0, as PyTorch's.
  const T last = static_cast<T>(n - 1);
  if (place > 0 && place < last) return place;
  *slope = 0;
  return place > 0 ? last : T(0);
}

template <class T>
int64_t element(T place, int64_t n) {
  return place >= 0 && place <= static_cast<T>(n - 1) ? static_cast<int64_t>(place) : -1;
}

// The weight of an element at a distance (Keys 1981, equation 4, with a = -0.75), and its slope.
template <class T>
T cubic(T d, bool near, T* slope) {
  const T a = T(-0.75);
  if (near) {
    *slope = (3 * (a + 2) * d - 2 * (a + 3)) * d;
    return ((a + 2) * d - (a + 3)) * d * d + 1;
  }
  *slope = a * ((3 * d - 10) * d + 8);
  return ((d - 5) * d + 8) * d * a - 4 * a;
}

// The taps of `count` points along an axis; their coordinates are `step` apart.
template <class T>
void find(const T* grid, int64_t step, int64_t count, int64_t n, const Sampling& how,
          Taps<T>* to) {
  const T half = static_cast<T>(how.align_corners ? n - 1 : n) / 2;
  for (int64_t p = 0; p < count; ++p) {
    const T at = grid[p * step];
    T place = how.align_corners ? (at + 1) / 2 * static_cast<T>(n - 1)
                                : ((at + 1) * static_cast<T>(n) - 1) / 2;
    T slope = half;
    if (how.mode == Sampling::bicubic) {
      const T low = std::floor(place), share = place - low;
      const T distance[4] = {share + 1, share, 1 - share, 2 - share};
      for (int i = 0; i < 4; ++i) {
        T unused = 1, by;
        to->at[i][p] = element(within(low + (i - 1), n, how, &unused), n);
        to->weight[i][p] = cubic(distance[i], i == 1 || i == 2, &by);
        to->slope[i][p] = i < 2 ? by * half : -by * half;
      }
      continue;
    }
    place = within(place, n, how, &slope);
    if (how.mode == Sampling::nearest) {
      to->at[0][p] = element(std::nearbyint(place), n);
      to->weight[0][p] = 1;
      to->slope[0][p] = 0;
      continue;
    }
    const T low = std::floor(place), share = place - low;
    to->at[0][p] = element(low, n);
    to->at[1][p] = element(low + 1, n);
    to->weight[0][p] = 1 - share;
    to->weight[1][p] = share;
    to->slope[0][p] = -slope;
    to->slope[1][p] = slope;
  }
}

// The taps of each axis, of which the grid's coordinates come in the opposite order.
template <class T>
void find_all(const Problem& q, const T* grid, int64_t count, const Sampling& how,
              Taps<T>* axes) {
  for (int i = 0; i < q.axes; ++i)
    find(grid + (q.axes - 1 - i), q.axes, count, q.size[i], how, &axes[i]);
}

// Which tap of an axis belongs to a corner.
int tap_of(const Problem& q, int corner, int axis) {
  for (int i = q.axes - 1; i > axis; --i) corner /= q.taps;
  return corner % q.taps;
}

template <class T>
void combine(const Problem& q, const Taps<T>* axes, int64_t count, Corners<T>* to) {
  to->count = q.corners;
  int64_t least = 0;
  for (int k = 0; k < q.corners; ++k) {
    const int first = tap_of(q, k, 0);
    for (int64_t p = 0; p < count; ++p) {
      to->at[k][p] = axes[0].at[first][p] < 0 ? -1 : axes[0].at[first][p] * q.step[0];
      to->weight[k][p] = axes[0].weight[first][p];
    }
    for (int i = 1; i < q.axes; ++i) {
      const int tap = tap_of(q, k, i);
      for (int64_t p = 0; p < count; ++p) {
        const int64_t next = axes[i].at[tap][p], so_far = to->at[k][p];
        to->at[k][p] = (so_far | next) < 0 ? -1 : so_far + next * q.step[i];
        to->weight[k][p] *= axes[i].weight[tap][p];
      }
    }
    for (int64_t p = 0; p < count; ++p) least = std::min(least, to->at[k][p]);
  }
  to->inside = least >= 0;
}

template <class T, int Count>
void sum_inside(const T* x, const Corners<T>& c, int64_t count, T* y) {
  for (int64_t p = 0; p < count; ++p) {
    T sum = 0;
    for (int k = 0; k < Count; ++k) sum += c.weight[k][p] * x[c.at[k][p]];
    y[p] = sum;
  }
}

// y[p] = the sum over corners of weight * x[at], where x has zeros outside.
template <class T>
void sum_corners(const T* x, const Corners<T>& c, int64_t count, T* y) {
  if (c.inside && c.count == 4) return sum_inside<T, 4>(x, c, count, y);
  if (c.inside && c.count == 8) return sum_inside<T, 8>(x, c, count, y);
  if (c.inside && c.count == 16) return sum_inside<T, 16>(x, c, count, y);
  for (int64_t p = 0; p < count; ++p) {
    T sum = 0;
    for (int k = 0; k < c.count; ++k) {
      const int64_t at = c.at[k][p];
      const T value = x[std::max<int64_t>(at, 0)];
      sum += c.weight[k][p] * (at < 0 ? T(0) : value);
    }
    y[p] = sum;
  }
}

template <class T>
const T* data(const View& v) {
  return reinterpret_cast<const T*>(v.data());
}

template <class F>
void with_float(DType t, F&& fn) {
  if (t == DType::float64) return fn(double());
  if (t == DType::float32) return fn(float());
  throw TypeError(std::string("grid_sample: no kernel for ") + name(t));
}

template <class T>
void sample(const Problem& q, const T* x, const T* grid, const Sampling& how, T* y) {
  const int64_t blocks = (q.points + kBlock - 1) / kBlock;
  const int64_t work = kBlock * q.corners * (q.channels + 4);
  parallel_for(q.batch * blocks, std::max<int64_t>(1, kLineGrain / work),
               [&](int64_t begin, int64_t end) {
    Taps<T> axes[kMaxAxes];
    Corners<T> corners;
    for (int64_t task = begin; task < end; ++task) {
      const int64_t n = task / blocks, first = task % blocks * kBlock;
      const int64_t count = std::min(kBlock, q.points - first);
      find_all(q, grid + (n * q.points + first) * q.axes, count, how, axes);
      combine(q, axes, count, &corners);
      for (int64_t c = n * q.channels; c < (n + 1) * q.channels; ++c)
        sum_corners(x + c * q.plane, corners, count, y + c * q.points + first);
    }
  });
}

// The gradient for x: threads divide the channels, so that no two write to one element.
template <class T>
void spread(const Problem& q, const T* grad, const T* grid, const Sampling& how, T* to_x) {
  const int64_t lines = q.batch * q.channels;
  const int64_t work = q.points * q.corners;
  parallel_for(lines, std::max<int64_t>(1, kLineGrain / std::max<int64_t>(1, work)),
               [&](int64_t begin, int64_t end) {
    Taps<T> axes[kMaxAxes];
    Corners<T> corners;
    std::fill(to_x + begin * q.plane, to_x + end * q.plane, T(0));
    for (int64_t line = begin; line < end;) {
      const int64_t n = line / q.channels, last = std::min(end, (n + 1) * q.channels);
      for (int64_t first = 0; first < q.points; first += kBlock) {
        const int64_t count = std::min(kBlock, q.points - first);
        find_all(q, grid + (n * q.points + first) * q.axes, count, how, axes);
        combine(q, axes, count, &corners);
        for (int64_t c = line; c < last; ++c) {
          const T* g = grad + c * q.points + first;
          T* to = to_x + c * q.plane;
          for (int k = 0; k < corners.count; ++k)
            for (int64_t p = 0; p < count; ++p)
              if (corners.at[k][p] >= 0) to[corners.at[k][p]] += corners.weight[k][p] * g[p];
        }
      }
      line = last;
    }
  });
}

// The gradient for the grid: the sum over channels of x * grad at each corner, by its weight's
// slope along each axis.
template <class T>
void slopes(const Problem& q, const T* grad, const T* x, const T* grid, const Sampling& how,
            T* to_grid) {
  const int64_t blocks = (q.points + kBlock - 1) / kBlock;
  const int64_t work = kBlock * q.corners * (q.channels + 8);
  parallel_for(q.batch * blocks, std::max<int64_t>(1, kLineGrain / work),
               [&](int64_t begin, int64_t end) {
    Taps<T> axes[kMaxAxes];
    Corners<T> corners;
    T dots[kMaxCorners][kBlock];
    for (int64_t task = begin; task < end; ++task) {
      const int64_t n = task / blocks, first = task % blocks * kBlock;
      const int64_t count = std::min(kBlock, q.points - first);
      find_all(q, grid + (n * q.points + first) * q.axes, count, how, axes);
      combine(q, axes, count, &corners);
      for (int k = 0; k < corners.count; ++k) std::fill_n(dots[k], count, T(0));
      for (int64_t c = n * q.channels; c < (n + 1) * q.channels; ++c) {
        const T *line = x + c * q.plane, *g = grad + c * q.points + first;
        for (int k = 0; k < corners.count; ++k)
          for (int64_t p = 0; p < count; ++p)
            if (corners.at[k][p] >= 0) dots[k][p] += line[corners.at[k][p]] * g[p];
      }
      T* to = to_grid + (n * q.points + first) * q.axes;
      std::fill_n(to, count * q.axes, T(0));
      for (int k = 0; k < corners.count; ++k)
        for (int i = 0; i < q.axes; ++i)
          for (int64_t p = 0; p < count; ++p) {
            if (corners.at[k][p] < 0) continue;
            T factor = dots[k][p];
            for (int j = 0; j < q.axes; ++j) {
              const int tap = tap_of(q, k, j);
              factor *= j == i ? axes[j].slope[tap][p] : axes[j].weight[tap][p];
            }
            to[p * q.axes + (q.axes - 1 - i)] += factor;
          }
    }
  });
}

}  // namespace

Sampling::Sampling(const std::string& mode_name, const std::string& padding_name, bool align)
    : align_corners(align) {
  const char* modes[] = {"bilinear", "nearest", "bicubic"};
  const char* paddings[] = {"zeros", "border", "reflection"};
  int found = 0;
  for (int i = 0; i < 3; ++i) {
    if (mode_name == modes[i]) mode = static_cast<Mode>(i), found |= 1;
    if (padding_name == paddings[i]) padding = static_cast<Padding>(i), found |= 2;
  }
  if (found != 3)
    throw std::invalid_argument("grid_sample: mode '" + mode_name + "' or padding '" +
                                padding_name + "' is unknown");
}

View grid_sample(const View& given, const View& given_grid, const Sampling& how) {
  const Problem q(given, given_grid, how);
  const View x = nd::compact(given), grid = nd::compact(given_grid);
  Dims shape;
  shape.push(q.batch);
  shape.push(q.channels);
  for (int i = 0; i < q.axes; ++i) shape.push(grid.shape()[1 + i]);
  View out = View::empty(x.dtype(), shape, x.device());
  if (out.size() == 0) return out;
  with_float(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    sample(q, data<T>(x), data<T>(grid), how, reinterpret_cast<T*>(out.data()));
  });
  return out;
}

std::pair<View, View> grid_sample_grad(const View& given_grad, const View& given,
                                       const View& given_grid, const Sampling& how) {
  const Problem q(given, given_grid, how);
  bool fits = given_grad.ndim() == given.ndim() && given_grad.dtype() == given.dtype();
  for (int i = 0; fits && i < given.ndim(); ++i)
    fits = given_grad.shape()[i] == (i < 2 ? given : given_grid).shape()[i < 2 ? i : i - 1];
  if (!fits)
    throw std::invalid_argument("grid_sample_grad: gradient " + given_grad.shape().str() +
                                " does not belong to the result");
  const View x = nd::compact(given), grid = nd::compact(given_grid);
  const View grad = nd::compact(given_grad);
  View to_x = View::empty(x.dtype(), x.shape(), x.device());
  View to_grid = View::empty(x.dtype(), grid.shape(), x.device());
  with_float(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T *g = data<T>(grad), *points = data<T>(grid);
    if (to_x.size() > 0) spread(q, g, points, how, reinterpret_cast<T*>(to_x.data()));
    if (to_grid.size() > 0)
      slopes(q, g, data<T>(x), points, how, reinterpret_cast<T*>(to_grid.data()));
  });
  return {to_x, to_grid};
}

}  // namespace needle
