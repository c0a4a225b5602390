// Interpolation of images at points of a grid.
#pragma once

#include <string>
#include <utility>

#include "common/view.h"

namespace needle {

// How a point reads an image, by PyTorch's names.
struct Sampling {
  std::string mode, padding;
  bool align_corners;
};

// Reads x (N, C, sizes...) of two or three axes at the points of grid (N, points..., axes), both of
// one floating dtype; returns (N, C, points...). A channel has fewer than 2^31 elements.
View grid_sample(const View& x, const View& grid, const Sampling& how);
// The gradients for x and grid from the gradient for the result.
std::pair<View, View> grid_sample_grad(const View& grad, const View& x, const View& grid,
                                       const Sampling& how);

}  // namespace needle
