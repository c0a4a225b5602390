// Gather, scatter and the optimizers' updates: checks, and copies if memory is shared.
#include "common/device.h"

namespace needle {
namespace nd {

namespace {

void check_index(const View& index, const char* what) {
  if (index.dtype() != DType::int32 && index.dtype() != DType::int64)
    throw TypeError(std::string(what) + ": index must hold integers, not " + name(index.dtype()));
}

void check_axis(const View& x, int64_t axis, const char* what) {
  if (axis < 0 || axis >= x.ndim())
    throw std::invalid_argument(std::string(what) + ": axis " + std::to_string(axis) +
                                " is out of range for shape " + x.shape().str());
}

// Returns x's shape with the index's shape in place of `axis`.
Dims indexed_shape(const View& x, const View& index, int64_t axis, const char* what) {
  if (x.ndim() - 1 + index.ndim() > kMaxDims)
    throw std::invalid_argument(std::string(what) + ": the result has more than " +
                                std::to_string(kMaxDims) + " dimensions");
  Dims shape;
  for (int i = 0; i < axis; ++i) shape.push(x.shape()[i]);
  for (int i = 0; i < index.ndim(); ++i) shape.push(index.shape()[i]);
  for (int i = static_cast<int>(axis) + 1; i < x.ndim(); ++i) shape.push(x.shape()[i]);
  return shape;
}

}  // namespace

namespace {

// Slices of fewer elements are not worth a loop each.
constexpr int64_t kSlice = 16;

// Flattens the index to one axis, and repeats each position for all elements of a slice. In the
// resulting view these repetitions share memory.
View along_slices(const View& x, const View& index, int64_t axis, Dims* shape) {
  const View line = compact(index);
  Dims strides;
  for (int i = 0; i < x.ndim(); ++i) {
    shape->push(i == axis ? index.size() : x.shape()[i]);
    strides.push(i == axis ? 1 : 0);
  }
  return View(line.buffer(), line.dtype(), *shape, strides, line.offset());
}

}  // namespace

View gather(const View& x, const View& index, int64_t axis) {
  if (is_small_integer(index.dtype())) return gather(x, cast(index, DType::int32), axis);
  check_axis(x, axis, "gather");
  const Dims shape = indexed_shape(x, index, axis, "gather");
  check_index(index, "gather");
  same_device("gather", x, {&index});
  View result = View::empty(x.dtype(), shape, x.device());
  if (result.size() > 0 && result.size() < kSlice * index.size()) {
    Dims merged;
    const View every = along_slices(x, index, axis, &merged);
    const View to(result.buffer(), x.dtype(), merged, compact_strides(merged), result.offset());
    device::take_along(x, every, axis, to);
    return result;
  }
  const Positions at = device::positions(index, x.shape()[static_cast<int>(axis)], "gather");
  if (result.size() > 0) device::gather(x, at, index, axis, result);
  return result;
}

void scatter(const View& dst, const View& index, const View& src, int64_t axis, bool accumulate) {
  if (is_small_integer(index.dtype()))
    return scatter(dst, cast(index, DType::int32), src, axis, accumulate);
  const char* what = accumulate ? "scatter_add" : "scatter";
  check_axis(dst, axis, what);
  const Dims shape = indexed_shape(dst, index, axis, what);
  check_index(index, what);
  same_device(what, dst, {&index, &src});
  const Positions at = device::positions(index, dst.shape()[static_cast<int>(axis)], what);
  if (accumulate && compute_type(dst.dtype()) != dst.dtype()) {
    View wide = cast(dst, compute_type(dst.dtype()));
    scatter(wide, index, src, axis, accumulate);
    return copy(wide, dst);
  }
  // Inputs must be read before anything is written, so src is copied if it shares memory with dst.
  const View own = src.dtype() != dst.dtype() || src.overlaps(dst) ? cast(src, dst.dtype()) : src;
  const View from = broadcast_to(own, shape, what);
  if (from.size() > 0) device::scatter(dst, at, index, from, axis, accumulate);
}

namespace {

void check_along(const View& x, const View& index, int64_t axis, const char* what) {
  check_axis(x, axis, what);
  check_index(index, what);
  bool fits = x.ndim() == index.ndim();
  for (int i = 0; fits && i < x.ndim(); ++i) fits = i == axis || x.shape()[i] == index.shape()[i];
  if (!fits)
    throw std::invalid_argument(std::string(what) + ": an index of shape " + index.shape().str() +
                                " does not fit shape " + x.shape().str() + " along axis " +
                                std::to_string(axis));
}

}  // namespace

View take_along(const View& x, const View& index, int64_t axis) {
  if (is_small_integer(index.dtype())) return take_along(x, cast(index, DType::int32), axis);
  check_along(x, index, axis, "take_along");
  same_device("take_along", x, {&index});
  View out = View::empty(x.dtype(), index.shape(), x.device());
  if (out.size() > 0) device::take_along(x, index, axis, out);
  return out;
}

View put_along(const View& x, const View& index, const View& src, int64_t axis, Put how) {
  if (is_small_integer(index.dtype()))
    return put_along(x, cast(index, DType::int32), src, axis, how);
  check_along(x, index, axis, "put_along");
  same_device("put_along", x, {&index, &src});
  const bool extreme = how == Put::max || how == Put::min;
  if ((how == Put::add && compute_type(x.dtype()) != x.dtype()) ||
      (extreme && !device::computes(x.dtype()))) {
    const DType wide = compute_type(x.dtype());
    return cast(put_along(cast(x, wide), index, cast(src, wide), axis, how), x.dtype());
  }
  const View own = src.dtype() != x.dtype() ? cast(src, x.dtype()) : src;
  const View from = broadcast_to(own, index.shape(), "put_along");
  View out = cast(x, x.dtype());
  if (from.size() > 0) device::put_along(out, index, from, axis, how);
  return out;
}

namespace {

// Checks that `other` has the parameter's shape and the dtype `expected`.
void check_like(const View& param, const View& other, DType expected, const char* what) {
  if (other.shape() != param.shape() || other.dtype() != expected)
    throw std::invalid_argument(std::string(what) + ": " + name(other.dtype()) + " " +
                                other.shape().str() + " given, but a parameter of " +
                                name(param.dtype()) + " " + param.shape().str() + " takes " +
                                name(expected) + " " + param.shape().str());
}

// Runs `update` on compact memory; a strided view is updated as a copy and written back.
template <class F>
void in_place(const View& a, const View* b, const View* c, F&& update) {
  View x = compact(a);
  std::optional<View> y, z;
  if (b) y = compact(*b);
  if (c) z = compact(*c);
  update(x, y ? &*y : nullptr, z ? &*z : nullptr);
  if (!a.is_compact()) copy(x, a);
  if (b && !b->is_compact()) copy(*y, *b);
  if (c && !c->is_compact()) copy(*z, *c);
}

void check_optimizer(const View& param, const char* what) {
  if (!is_floating(param.dtype()))
    throw TypeError(std::string(what) + ": parameters must be floating point, not " +
                    name(param.dtype()));
}

}  // namespace

void sgd_step(const View& param, const View& grad, const View* velocity, const SgdFactors& f) {
  check_optimizer(param, "sgd_step");
  const DType state = compute_type(param.dtype());
  check_like(param, grad, param.dtype(), "sgd_step");
  if (velocity) check_like(param, *velocity, state, "sgd_step");
  same_device("sgd_step", param, {&grad, velocity});
  View g = grad.overlaps(param) ? cast(grad, grad.dtype()) : compact(grad);
  in_place(param, velocity, nullptr, [&](const View& p, const View* v, const View*) {
    if (p.size() > 0) device::sgd_step(p, g, v, f);
  });
}

void adam_step(const View& param, const View& grad, const View& m, const View& v,
               const AdamFactors& f) {
  check_optimizer(param, "adam_step");
  const DType state = compute_type(param.dtype());
  check_like(param, grad, param.dtype(), "adam_step");
  check_like(param, m, state, "adam_step");
  check_like(param, v, state, "adam_step");
  same_device("adam_step", param, {&grad, &m, &v});
  View g = grad.overlaps(param) ? cast(grad, grad.dtype()) : compact(grad);
  in_place(param, &m, &v, [&](const View& p, const View* first, const View* second) {
    if (p.size() > 0) device::adam_step(p, g, *first, *second, f);
  });
}

}  // namespace nd
}  // namespace needle
