// The iteration space of a convolution over (N, H, W, C) with a weight (kh, kw, C, O).
#pragma once

#include <algorithm>
#include <string>

#include "common/functions.h"
#include "common/integers.h"

namespace needle {

constexpr int64_t kWindowLimit = int64_t{1} << 24;  // of a kernel, stride, padding or dilation
constexpr int64_t kLargestElement = 16;

// One image axis: only taps [first, first + taps) ever meet the image. They span the interval
// [low, low + extent), where positions outside of [0, size) are padding.
struct Axis {
  int64_t size, count, stride, dilation, first = 0, taps = 0, low = 0, extent = 0;

  Axis(const char* what, int64_t image, int64_t kernel, int64_t step, int64_t padding,
       int64_t spread)
      : size(image), stride(step), dilation(spread) {
    if (kernel < 1 || step < 1 || padding < 0 || spread < 1 || image > (int64_t{1} << 40) ||
        std::max({kernel, step, padding, spread}) > kWindowLimit)
      throw std::invalid_argument(std::string(what) + ": kernel " + std::to_string(kernel) +
                                  ", stride " + std::to_string(step) + ", padding " +
                                  std::to_string(padding) + " and dilation " +
                                  std::to_string(spread) + " are not a window");
    const int64_t room = image + 2 * padding - spread * (kernel - 1) - 1;
    if (room < 0)
      throw std::invalid_argument(std::string(what) + ": an extent of " + std::to_string(image) +
                                  " with padding " + std::to_string(padding) +
                                  " is smaller than a window of " + std::to_string(kernel));
    count = room / step + 1;
    int64_t last = -1;
    for (int64_t i = 0; i < kernel; ++i) {
      const int64_t shift = i * spread - padding;  // position of the first window
      const int64_t y = shift < 0 ? ceil_div(-shift, step) : 0;
      if (y >= count || y * step + shift >= image) continue;
      if (last < 0) first = i;
      last = i;
    }
    if (last < 0) return;
    taps = last - first + 1;
    low = first * spread - padding;
    extent = (count - 1) * step + (taps - 1) * spread + 1;
  }
  bool inside() const { return low >= 0 && low + extent <= size; }
};

struct Plan {
  Axis y, x;
  int64_t n, c, o, size;
  DType dtype;

  Plan(const char* what, DType t, int64_t images, int64_t h, int64_t w, int64_t channels,
       int64_t outputs, int64_t kh, int64_t kw, const ConvWindow& at)
      : y(what, h, kh, at.stride[0], at.padding[0], at.dilation[0]),
        x(what, w, kw, at.stride[1], at.padding[1], at.dilation[1]),
        n(images),
        c(channels),
        o(outputs),
        size(itemsize(t)),
        dtype(t) {
    if (t != DType::float32 && t != DType::float64)
      throw TypeError(std::string(what) + " is not defined for " + name(t));
    // The bytes of any array made from these fit an int64_t.
    checked_size(dims(n, y.extent, x.extent, c), size);
    checked_size(dims(n, y.count, x.count, std::max(o, c)), kLargestElement);
    checked_size(dims(n, pixels(), depth(), 1), size);
    checked_size(dims(kh, kw, c, o), size);
  }
  int64_t pixels() const { return y.count * x.count; }
  // The number of terms in each output's sum.
  int64_t depth() const { return y.taps * x.taps * c; }
  bool nothing() const { return depth() == 0 || n * pixels() == 0; }
  Dims output() const { return dims(n, y.count, x.count, o); }
  Dims image() const { return dims(n, y.size, x.size, c); }
  static Dims dims(int64_t a, int64_t b, int64_t c, int64_t d) {
    Dims shape;
    for (int64_t extent : {a, b, c, d}) shape.push(extent);
    return shape;
  }
  // The part of a weight (kh, kw, c, o) whose taps meet the image.
  View part(const View& w) const {
    const Dims& s = w.strides();
    return View(w.buffer(), w.dtype(), dims(y.taps, x.taps, c, o), s,
                w.offset() + y.first * s[0] + x.first * s[1]);
  }
};

}  // namespace needle
