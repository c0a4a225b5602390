// Interpolation of images at points of a grid. The elements and weights of a point are computed
// once for all channels. Compiled once per instruction set.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "cpu/grid_kernels.h"

namespace needle {
namespace NEEDLE_ISA {

namespace {

constexpr int64_t kBlock = kGridBlock;
constexpr int kMaxAxes = 3, kMaxTaps = 4, kMaxCorners = 16;

template <class T>
struct Grid {
  // A position, as wide as T so that vectors hold as many of both; -1 means outside.
  using Place = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;

  // The elements along one axis that each point of a block reads.
  struct Taps {
    Place at[kMaxTaps][kBlock];
    T weight[kMaxTaps][kBlock];
    T slope[kMaxTaps][kBlock];  // derivative of the weight with respect to the point's coordinate
  };

  // The same for all axes together: elements of a channel, and products of weights.
  struct Corners {
    bool inside;  // no position is outside
    Place at[kMaxCorners][kBlock];
    T weight[kMaxCorners][kBlock];
  };

  // Moves a position into an axis whose last element is `last`; multiplies `slope` by the slope of
  // this move.
  template <GridPadding kPadding>
  static T within(T place, T last, bool align_corners, T* slope) {
    if constexpr (kPadding == GridPadding::zeros) return place;
    if constexpr (kPadding == GridPadding::reflection) {
      const T low = align_corners ? T(0) : T(-0.5);
      const T span = align_corners ? last : last + 1;
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
    // NaN becomes 0, and the slope at a border is 0, as in PyTorch.
    const bool kept = place > 0 && place < last;
    *slope = kept ? *slope : T(0);
    return kept ? place : place > 0 ? last : T(0);
  }

  static Place element(T place, T last) {
    return static_cast<Place>(place >= 0 && place <= last ? place : T(-1));
  }

  // The weight of an element at distance d (Keys 1981, equation 4, with a = -0.75), and its slope.
  static T cubic(T d, bool near, T* slope) {
    const T a = T(-0.75);
    *slope = near ? (3 * (a + 2) * d - 2 * (a + 3)) * d : a * ((3 * d - 10) * d + 8);
    return near ? ((a + 2) * d - (a + 3)) * d * d + 1 : ((d - 5) * d + 8) * d * a - 4 * a;
  }

  // Finds the taps of `count` points along an axis of extent n; coordinates are `step` apart.
  template <GridMode kMode, GridPadding kPadding>
  static void find(const T* __restrict grid, int64_t step, int64_t count, int64_t n, bool align,
                   Taps* __restrict to) {
    const T extent = static_cast<T>(n), last = static_cast<T>(n - 1);
    const T half = (align ? last : extent) / 2;
    T place[kBlock];
    if (align) {
      for (int64_t p = 0; p < count; ++p) place[p] = (grid[p * step] + 1) / 2 * last;
    } else {
      for (int64_t p = 0; p < count; ++p) place[p] = ((grid[p * step] + 1) * extent - 1) / 2;
    }
    for (int64_t p = 0; p < count; ++p) {
      T slope = half;
      if constexpr (kMode == GridMode::bicubic) {
        const T low = std::floor(place[p]), share = place[p] - low;
        const T distance[4] = {share + 1, share, 1 - share, 2 - share};
        for (int i = 0; i < 4; ++i) {
          T unused = 1, by;
          const T at = within<kPadding>(low + static_cast<T>(i - 1), last, align, &unused);
          to->at[i][p] = element(at, last);
          to->weight[i][p] = cubic(distance[i], i == 1 || i == 2, &by);
          to->slope[i][p] = i < 2 ? by * half : -by * half;
        }
      } else if constexpr (kMode == GridMode::nearest) {
        const T at = within<kPadding>(place[p], last, align, &slope);
        to->at[0][p] = element(std::nearbyint(at), last);
        to->weight[0][p] = 1;
        to->slope[0][p] = 0;
      } else {
        const T at = within<kPadding>(place[p], last, align, &slope);
        const T low = std::floor(at), share = at - low;
        to->at[0][p] = element(low, last);
        to->at[1][p] = element(low + 1, last);
        to->weight[0][p] = 1 - share;
        to->weight[1][p] = share;
        to->slope[0][p] = -slope;
        to->slope[1][p] = slope;
      }
    }
  }

  template <GridMode kMode>
  static void find_by(const GridPlan& q, const T* grid, int64_t count, int64_t n, Taps* to) {
    const auto by = [&](auto padding) {
      find<kMode, decltype(padding)::value>(grid, q.axes, count, n, q.align_corners, to);
    };
    switch (q.padding) {
      case GridPadding::zeros:
        return by(std::integral_constant<GridPadding, GridPadding::zeros>());
      case GridPadding::border:
        return by(std::integral_constant<GridPadding, GridPadding::border>());
      default:
        return by(std::integral_constant<GridPadding, GridPadding::reflection>());
    }
  }

  // Finds the taps along each axis; a point's coordinates come in the reverse order of the axes.
  static void find_all(const GridPlan& q, const T* grid, int64_t count, Taps* axes) {
    for (int i = 0; i < q.axes; ++i) {
      const T* first = grid + (q.axes - 1 - i);
      if (q.mode == GridMode::bilinear)
        find_by<GridMode::bilinear>(q, first, count, q.size[i], &axes[i]);
      else if (q.mode == GridMode::nearest)
        find_by<GridMode::nearest>(q, first, count, q.size[i], &axes[i]);
      else
        find_by<GridMode::bicubic>(q, first, count, q.size[i], &axes[i]);
    }
  }

  // The tap along an axis that belongs to a corner.
  static int tap_of(const GridPlan& q, int corner, int axis) {
    for (int i = q.axes - 1; i > axis; --i) corner /= q.taps;
    return corner % q.taps;
  }

  static void combine(const GridPlan& q, const Taps* axes, int64_t count, Corners* to) {
    Place least = 0;
    for (int k = 0; k < q.corners; ++k) {
      Place* __restrict at = to->at[k];
      T* __restrict weight = to->weight[k];
      const int first = tap_of(q, k, 0);
      const Place step = static_cast<Place>(q.step[0]);
      for (int64_t p = 0; p < count; ++p) {
        const Place place = axes[0].at[first][p];
        at[p] = place < 0 ? Place(-1) : place * step;
        weight[p] = axes[0].weight[first][p];
      }
      for (int i = 1; i < q.axes; ++i) {
        const int tap = tap_of(q, k, i);
        const Place* __restrict further = axes[i].at[tap];
        const T* __restrict factor = axes[i].weight[tap];
        const Place by = static_cast<Place>(q.step[i]);
        for (int64_t p = 0; p < count; ++p) {
          at[p] = (at[p] | further[p]) < 0 ? Place(-1) : at[p] + further[p] * by;
          weight[p] *= factor[p];
        }
      }
      for (int64_t p = 0; p < count; ++p) least = std::min(least, at[p]);
    }
    to->inside = least >= 0;
  }

  template <int kCorners>
  static void sum_inside(const T* __restrict x, const Corners& c, int64_t count, T* __restrict y) {
    for (int64_t p = 0; p < count; ++p) {
      T sum = 0;
      for (int k = 0; k < kCorners; ++k) sum += c.weight[k][p] * x[c.at[k][p]];
      y[p] = sum;
    }
  }

  // The same if some positions are outside; there, x counts as zero.
  template <int kCorners>
  static void sum_some(const T* __restrict x, const Corners& c, int64_t count, T* __restrict y) {
    for (int64_t p = 0; p < count; ++p) {
      T sum = 0;
      for (int k = 0; k < kCorners; ++k) {
        const Place at = c.at[k][p];
        const T value = x[at < 0 ? 0 : at];
        sum += c.weight[k][p] * (at < 0 ? T(0) : value);
      }
      y[p] = sum;
    }
  }

  template <int kCorners>
  static void sum_channels(const GridPlan& q, const T* x, const Corners& c, int64_t count, T* y) {
    for (int64_t channel = 0; channel < q.channels; ++channel) {
      if (c.inside)
        sum_inside<kCorners>(x + channel * q.plane, c, count, y + channel * q.points);
      else
        sum_some<kCorners>(x + channel * q.plane, c, count, y + channel * q.points);
    }
  }

  static void sample(const GridPlan& q, const void* xv, const void* grid, int64_t count, void* yv) {
    const T* x = static_cast<const T*>(xv);
    T* y = static_cast<T*>(yv);
    Taps axes[kMaxAxes];
    Corners corners;
    find_all(q, static_cast<const T*>(grid), count, axes);
    combine(q, axes, count, &corners);
    switch (q.corners) {
      case 1:
        return sum_channels<1>(q, x, corners, count, y);
      case 4:
        return sum_channels<4>(q, x, corners, count, y);
      case 8:
        return sum_channels<8>(q, x, corners, count, y);
      default:
        return sum_channels<16>(q, x, corners, count, y);
    }
  }

  static void spread(const GridPlan& q, const void* gradv, const void* grid, int64_t count,
                     int64_t channels, void* to_x) {
    Taps axes[kMaxAxes];
    Corners corners;
    find_all(q, static_cast<const T*>(grid), count, axes);
    combine(q, axes, count, &corners);
    for (int64_t c = 0; c < channels; ++c) {
      const T* grad = static_cast<const T*>(gradv) + c * q.points;
      T* to = static_cast<T*>(to_x) + c * q.plane;
      for (int k = 0; k < q.corners; ++k)
        for (int64_t p = 0; p < count; ++p) {
          const Place at = corners.at[k][p];
          if (at >= 0) to[at] += corners.weight[k][p] * grad[p];
        }
    }
  }

  // At each corner, the sum over channels of x * grad, times the slopes of the corner's weight.
  static void slopes(const GridPlan& q, const void* gradv, const void* xv, const void* grid,
                     int64_t count, void* to_grid) {
    Taps axes[kMaxAxes];
    Corners corners;
    T dots[kMaxCorners][kBlock];
    find_all(q, static_cast<const T*>(grid), count, axes);
    combine(q, axes, count, &corners);
    for (int k = 0; k < q.corners; ++k) std::fill_n(dots[k], count, T(0));
    for (int64_t c = 0; c < q.channels; ++c) {
      const T* x = static_cast<const T*>(xv) + c * q.plane;
      const T* grad = static_cast<const T*>(gradv) + c * q.points;
      for (int k = 0; k < q.corners; ++k)
        for (int64_t p = 0; p < count; ++p) {
          const Place at = corners.at[k][p];
          const T value = x[at < 0 ? 0 : at];
          dots[k][p] += (at < 0 ? T(0) : value) * grad[p];
        }
    }
    T* to = static_cast<T*>(to_grid);
    std::fill_n(to, count * q.axes, T(0));
    for (int k = 0; k < q.corners; ++k)
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

  static GridKernels kernels() { return {sample, spread, slopes}; }
};

}  // namespace

void fill_grid(GridKernels* f32, GridKernels* f64) {
  *f32 = Grid<float>::kernels();
  *f64 = Grid<double>::kernels();
}

}  // namespace NEEDLE_ISA
}  // namespace needle
