#include "common/moves.h"

#include <algorithm>

#include "common/device.h"

namespace needle {
namespace nd {

namespace {

// Returns strides that give x's elements another shape of equal size, or nothing if no strides can.
// x must have at least one element.
std::optional<Dims> reshaped(const View& x, const Dims& shape) {
  Dims extents, steps, strides;
  for (int i = 0; i < x.ndim(); ++i) {
    if (x.shape()[i] == 1) continue;
    extents.push(x.shape()[i]);
    steps.push(x.strides()[i]);
  }
  strides.ndim = shape.ndim;
  for (int to = 0, from = 0; to < shape.ndim;) {
    if (shape[to] == 1) {
      strides[to++] = 1;
      continue;
    }
    // The smallest groups of old axes [from, end) and new axes [to, last) with equal sizes.
    int end = from + 1, last = to + 1;
    int64_t have = extents[from], want = shape[to];
    while (have != want) {
      if (have < want) {
        have *= extents[end++];
      } else {
        want *= shape[last++];
      }
    }
    for (int i = from; i + 1 < end; ++i)
      if (steps[i] != extents[i + 1] * steps[i + 1]) return std::nullopt;
    int64_t step = steps[end - 1];
    for (int axis = last - 1; axis >= to; --axis) {
      strides[axis] = step;
      step *= shape[axis];
    }
    to = last;
    from = end;
  }
  return strides;
}

View part(const View& x, int axis, int64_t begin, int64_t count) {
  Dims shape = x.shape();
  shape[axis] = count;
  return View(x.buffer(), x.dtype(), shape, x.strides(), x.offset() + begin * x.strides()[axis]);
}

// Cuts x into blocks along axes[k] and all later axes, and copies the blocks to their positions.
void roll_into(const View& x, const View& out, const Dims& shifts, const Dims& axes, int k) {
  if (k == axes.ndim) return copy(x, out);
  const int axis = static_cast<int>(axes[k]);
  const int64_t n = x.shape()[axis], shift = shifts[k];
  if (shift == 0) return roll_into(x, out, shifts, axes, k + 1);
  roll_into(part(x, axis, 0, n - shift), part(out, axis, shift, n - shift), shifts, axes, k + 1);
  roll_into(part(x, axis, n - shift, shift), part(out, axis, 0, shift), shifts, axes, k + 1);
}

Operand of(const View& x) {
  Operand o;
  o.view = &x;
  return o;
}

// Converts x to the dtype in which several steps are computed, so that halves are rounded only
// once, and sums of halves do not overflow.
View floats(const View& x) {
  const DType wide = is_floating(x.dtype()) ? compute_type(x.dtype()) : DType::float64;
  return wide == x.dtype() ? x : cast(x, wide);
}

View narrowed(const View& made, const View& x) {
  return is_floating(x.dtype()) && made.dtype() != x.dtype() ? cast(made, x.dtype()) : made;
}

}  // namespace

View reshape(const View& x, const Dims& shape) {
  const bool plain = x.is_compact() || x.size() == 0;
  const std::optional<Dims> strides = plain ? compact_strides(shape) : reshaped(x, shape);
  if (strides) return View(x.buffer(), x.dtype(), shape, *strides, x.offset());
  const View made = compact(x);
  return View(made.buffer(), x.dtype(), shape, compact_strides(shape), made.offset());
}

View diagonal(const View& x, int64_t offset, int axis1, int axis2) {
  const int64_t rows = x.shape()[axis1], columns = x.shape()[axis2];
  // If no position lies in both extents, the diagonal is empty and the offset must not be used.
  const bool inside = offset > -rows && offset < columns;
  const int64_t row = inside && offset < 0 ? -offset : 0,
                column = inside && offset > 0 ? offset : 0;
  Dims shape, strides;
  for (int i = 0; i < x.ndim(); ++i) {
    if (i == axis1 || i == axis2) continue;
    shape.push(x.shape()[i]);
    strides.push(x.strides()[i]);
  }
  shape.push(inside ? std::min(rows - row, columns - column) : 0);
  strides.push(x.strides()[axis1] + x.strides()[axis2]);
  const bool empty = checked_size(shape, 1) == 0;
  const int64_t begin = empty ? 0 : row * x.strides()[axis1] + column * x.strides()[axis2];
  return View(x.buffer(), x.dtype(), shape, strides, x.offset() + begin);
}

View roll(const View& x, const Dims& shifts, const Dims& axes) {
  View out = View::empty(x.dtype(), x.shape(), x.device());
  if (out.size() > 0) roll_into(x, out, shifts, axes, 0);
  return out;
}

View mean(const View& x, const Dims& axes, bool keepdims) {
  const View total = reduce(Reduction::sum, floats(x), axes, keepdims);
  Operand count;
  count.kind = 2;
  count.real = 1;
  for (int i = 0; i < axes.ndim; ++i) count.real *= static_cast<double>(x.shape()[axes[i]]);
  return narrowed(binary(Binary::divide, of(total), count), x);
}

View softmax(const View& x, int64_t axis, bool log) {
  if (axis < -x.ndim() || axis >= x.ndim())
    throw std::invalid_argument("softmax: axis " + std::to_string(axis) +
                                " is out of range for shape " + x.shape().str());
  Dims axes;
  axes.push(axis < 0 ? axis + x.ndim() : axis);
  const View in = floats(x);
  if (in.size() == 0) return narrowed(in, x);  // there is no maximum
  if (axes[0] == x.ndim() - 1 && in.is_compact()) {
    View out = View::empty(in.dtype(), in.shape(), in.device());
    if (device::softmax(in, log, out)) return narrowed(out, x);
  }
  const View top = reduce(Reduction::max, in, axes, true);
  const View shifted = binary(Binary::subtract, of(in), of(top));
  const View terms = unary(Unary::exp, shifted);
  const View total = reduce(Reduction::sum, terms, axes, true);
  if (!log) return narrowed(binary(Binary::divide, of(terms), of(total)), x);
  const View size = unary(Unary::log, total);
  return narrowed(binary(Binary::subtract, of(shifted), of(size)), x);
}

View kron(const View& a, const View& b) {
  const int ndim = std::max(a.ndim(), b.ndim());
  if (2 * ndim > kMaxDims)
    throw std::invalid_argument("kron: shapes " + a.shape().str() + " and " + b.shape().str() +
                                " have more than " + std::to_string(kMaxDims / 2) + " axes");
  Dims apart, blocks, whole;
  for (int i = 0; i < ndim; ++i) {
    const auto extent = [&](const View& v) {
      const int axis = i - (ndim - v.ndim());
      return axis < 0 ? 1 : v.shape()[axis];
    };
    const int64_t n = extent(a), m = extent(b);
    apart.push(n);
    apart.push(1);
    blocks.push(1);
    blocks.push(m);
    whole.push(0);
    if (__builtin_mul_overflow(n, m, &whole[i]))
      throw std::invalid_argument("kron: the result has too many elements");
  }
  const View x = reshape(a, apart), y = reshape(b, blocks);
  return reshape(binary(Binary::multiply, of(x), of(y)), whole);
}

View concat(const std::vector<const View*>& parts, int64_t axis, bool stacked) {
  if (parts.empty()) throw std::invalid_argument("concat: there are no parts");
  const View& first = *parts[0];
  const int ndim = first.ndim() + stacked;
  if (axis < -ndim || axis >= ndim || ndim > kMaxDims)
    throw std::invalid_argument("concat: axis " + std::to_string(axis) +
                                " is out of range for shape " + first.shape().str());
  const int at = static_cast<int>(axis < 0 ? axis + ndim : axis);
  DType t = first.dtype();
  int64_t total = 0;
  for (const View* each : parts) {
    same_device("concat", first, {each});
    t = promote(t, each->dtype());
    bool fits = each->ndim() == first.ndim();
    for (int i = 0; fits && i < first.ndim(); ++i)
      fits = each->shape()[i] == first.shape()[i] || (i == at && !stacked);
    if (!fits)
      throw std::invalid_argument("concat: shapes " + first.shape().str() + " and " +
                                  each->shape().str() + " do not fit");
    total += stacked ? 1 : each->shape()[at];
  }
  Dims shape;
  for (int i = 0; i < ndim; ++i)
    shape.push(i == at ? total : first.shape()[stacked && i > at ? i - 1 : i]);
  View out = View::empty(t, shape, first.device());
  if (out.size() == 0) return out;
  Dims strides;
  for (int i = 0; i < ndim; ++i)
    if (!stacked || i != at) strides.push(out.strides()[i]);
  int64_t begin = 0;
  for (const View* each : parts) {
    const int64_t offset = begin * out.strides()[at];
    if (each->size() > 0) copy(*each, View(out.buffer(), t, each->shape(), strides, offset));
    begin += stacked ? 1 : each->shape()[at];
  }
  return out;
}

View product(const View& a, const View& b) {
  if (a.ndim() > 1 && b.ndim() > 1) return matmul(a, b);
  if (a.ndim() == 0 || b.ndim() == 0)
    throw std::invalid_argument("matmul: 0-d operand (" + a.shape().str() + " @ " +
                                b.shape().str() + ")");
  const auto matrix = [](const View& v, bool row) {
    if (v.ndim() > 1) return v;
    Dims shape, strides;
    for (int i = 0; i < 2; ++i) {
      const bool along = (i == 1) == row;
      shape.push(along ? v.shape()[0] : 1);
      strides.push(along ? v.strides()[0] : 1);
    }
    return View(v.buffer(), v.dtype(), shape, strides, v.offset());
  };
  const View made = matmul(matrix(a, true), matrix(b, false));
  Dims shape;
  for (int i = 0; i < made.ndim(); ++i) {
    const bool added =
        (i == made.ndim() - 2 && a.ndim() == 1) || (i == made.ndim() - 1 && b.ndim() == 1);
    if (!added) shape.push(made.shape()[i]);
  }
  return reshape(made, shape);
}

}  // namespace nd
}  // namespace needle
