// The kernels of grid_sample, compiled once per instruction set. Each works on a block of points of
// one image, for all channels or some.
#pragma once

#include <cstdint>

#include "common/dtype.h"

namespace needle {

enum class GridMode { bilinear, nearest, bicubic };
enum class GridPadding { zeros, border, reflection };

constexpr int64_t kGridBlock = 128;  // in points

// How points read an image; `size` and `step` belong to the image's axes within a channel.
struct GridPlan {
  GridMode mode;
  GridPadding padding;
  bool align_corners;
  int axes, taps, corners;          // elements per point: along an axis, and over all axes
  int64_t channels, plane, points;  // elements and points of a channel
  int64_t size[3], step[3];
};

// `grid` points to the first of `count` points; x and to_x to the first of `channels` channels; y
// and grad to the first point of that channel.
struct GridKernels {
  void (*sample)(const GridPlan& q, const void* x, const void* grid, int64_t count, void* y);
  // to_x += the gradient for x
  void (*spread)(const GridPlan& q, const void* grad, const void* grid, int64_t count,
                 int64_t channels, void* to_x);
  // to_grid = the gradient for the grid
  void (*slopes)(const GridPlan& q, const void* grad, const void* x, const void* grid,
                 int64_t count, void* to_grid);
};

// The kernels for float32 and float64.
const GridKernels& grid_kernels(DType t);

}  // namespace needle
