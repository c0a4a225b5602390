// Convolution and its two gradients: checks of arguments, and cases without computation.
#include "common/device.h"

namespace needle {
namespace nd {

namespace {

void check(const char* what, bool right, const View& a, const View& b) {
  if (!right || a.ndim() != 4 || b.ndim() != 4 || a.dtype() != b.dtype())
    throw std::invalid_argument(std::string(what) + ": " + name(a.dtype()) + " " + a.shape().str() +
                                " and " + name(b.dtype()) + " " + b.shape().str() +
                                " do not match");
}

View zeros(DType t, const Dims& shape, int on) {
  View out = View::empty(t, shape, on);
  device::fill_bytes(out, 0);
  return out;
}

}  // namespace

View conv2d(const View& x, const View& w, const ConvWindow& at) {
  const char* what = "conv2d";
  check(what, x.ndim() == 4 && w.ndim() == 4 && x.shape()[3] == w.shape()[2], x, w);
  same_device(what, x, {&w});
  const Dims &a = x.shape(), &b = w.shape();
  const Plan p(what, x.dtype(), a[0], a[1], a[2], a[3], b[3], b[0], b[1], at);
  if (p.nothing() || p.o == 0) return zeros(p.dtype, p.output(), x.device());
  View out = View::empty(p.dtype, p.output(), x.device());
  device::conv2d(p, x, compact(p.part(w)), out);
  return out;
}

View conv2d_input(const View& g, const View& w, int64_t h, int64_t width, const ConvWindow& at) {
  const char* what = "conv2d_input";
  check(what, g.ndim() == 4 && w.ndim() == 4 && g.shape()[3] == w.shape()[3], g, w);
  same_device(what, g, {&w});
  const Dims& b = w.shape();
  const Plan p(what, g.dtype(), g.shape()[0], h, width, b[2], b[3], b[0], b[1], at);
  check(what, p.output() == g.shape(), g, w);
  if (p.nothing() || p.o == 0) return zeros(p.dtype, p.image(), g.device());
  View out = View::empty(p.dtype, p.image(), g.device());
  device::conv2d_input(p, compact(g), compact(p.part(w)), out);
  return out;
}

View conv2d_weight(const View& x, const View& g, int64_t kh, int64_t kw, const ConvWindow& at) {
  const char* what = "conv2d_weight";
  check(what, x.ndim() == 4 && g.ndim() == 4, x, g);
  same_device(what, x, {&g});
  const Dims& a = x.shape();
  const Plan p(what, x.dtype(), a[0], a[1], a[2], a[3], g.shape()[3], kh, kw, at);
  check(what, p.output() == g.shape(), x, g);
  const bool whole = p.y.taps == kh && p.x.taps == kw && !p.nothing();
  const Dims shape = Plan::dims(kh, kw, p.c, p.o);
  View out = whole ? View::empty(p.dtype, shape, x.device()) : zeros(p.dtype, shape, x.device());
  if (!p.nothing() && p.o > 0) device::conv2d_weight(p, x, compact(g), whole, out);
  return out;
}

}  // namespace nd
}  // namespace needle
