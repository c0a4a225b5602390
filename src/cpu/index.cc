// Gather, scatter and the optimizers' updates.
#include <cstring>
#include <vector>

#include "common/loop.h"
#include "cpu/cpu.h"
#include "cpu/thread_pool.h"

namespace needle {
namespace cpu {

namespace {

// The index as non-negative positions; std::out_of_range names the first bad one.
std::vector<int64_t> positions(const View& index, int64_t extent, const char* what) {
  if (index.dtype() != DType::int32 && index.dtype() != DType::int64)
    throw TypeError(std::string(what) + ": index must be int32 or int64, not " +
                    name(index.dtype()));
  View wide =
      index.dtype() == DType::int64 && index.is_compact() ? index : cast(index, DType::int64);
  const int64_t* p = reinterpret_cast<const int64_t*>(wide.data());
  std::vector<int64_t> out(static_cast<size_t>(wide.size()));
  for (size_t i = 0; i < out.size(); ++i) {
    if (p[i] < -extent || p[i] >= extent)
      throw std::out_of_range(std::string(what) + ": index " + std::to_string(p[i]) +
                              " is out of bounds for an axis of extent " + std::to_string(extent));
    out[i] = p[i] < 0 ? p[i] + extent : p[i];
  }
  return out;
}

void check_axis(const View& x, int64_t axis, const char* what) {
  if (axis < 0 || axis >= x.ndim())
    throw std::invalid_argument(std::string(what) + ": axis " + std::to_string(axis) +
                                " is out of range for shape " + x.shape().str());
}

// The shape with `axis` replaced by the index's shape.
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

Dims without(const Dims& dims, int64_t axis, int count) {
  Dims out;
  for (int i = 0; i < dims.ndim; ++i)
    if (i < axis || i >= axis + count) out.push(dims[i]);
  return out;
}

// For a view shaped (pre, index..., post): the offset of each index position.
std::vector<int64_t> index_offsets(const View& x, int64_t axis, const View& index) {
  Dims shape, strides;
  for (int i = 0; i < index.ndim(); ++i) {
    shape.push(x.shape()[static_cast<int>(axis) + i]);
    strides.push(x.strides()[static_cast<int>(axis) + i]);
  }
  std::vector<int64_t> out;
  out.reserve(static_cast<size_t>(index.size()));
  Loop<1> loop(shape, {strides});
  loop.run(0, index.size(), [&](const int64_t* offset, int64_t n) {
    for (int64_t i = 0; i < n; ++i) out.push_back(offset[0] + i * loop.inner(0));
  });
  return out;
}

View compact_or_copy(const View& v) { return v.is_compact() ? v : cast(v, v.dtype()); }

}  // namespace

View gather(const View& x, const View& index, int64_t axis) {
  check_axis(x, axis, "gather");
  Dims shape = indexed_shape(x, index, axis, "gather");
  std::vector<int64_t> where = positions(index, x.shape()[static_cast<int>(axis)], "gather");
  View out = View::empty(x.dtype(), shape);
  if (out.size() == 0) return out;
  std::vector<int64_t> to = index_offsets(out, axis, index);
  const int64_t step = x.strides()[static_cast<int>(axis)], size = itemsize(x.dtype());
  Loop<2> rest(without(x.shape(), axis, 1),
               {without(x.strides(), axis, 1), without(out.strides(), axis, index.ndim())});
  CastRow row = kernels().cast[static_cast<int>(x.dtype())][static_cast<int>(x.dtype())];
  int64_t n = static_cast<int64_t>(where.size());
  parallel_for(n, std::max<int64_t>(1, kGrain / rest.total), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      rest.run(0, rest.total, [&](const int64_t* offset, int64_t length) {
        row(x.data() + (where[i] * step + offset[0]) * size, rest.inner(0),
            out.data() + (to[i] + offset[1]) * size, rest.inner(1), length);
      });
  });
  return out;
}

void scatter(const View& dst, const View& index, const View& src, int64_t axis, bool accumulate) {
  const char* what = accumulate ? "scatter_add" : "scatter";
  check_axis(dst, axis, what);
  Dims shape = indexed_shape(dst, index, axis, what);
  std::vector<int64_t> where = positions(index, dst.shape()[static_cast<int>(axis)], what);
  if (accumulate && is_half(dst.dtype())) {
    View wide = cast(dst, compute_type(dst.dtype()));
    scatter(wide, index, src, axis, accumulate);
    return copy(wide, dst);
  }
  // Inputs are read before anything is written: sharing memory with dst forces a copy.
  View own = src.dtype() != dst.dtype() || src.overlaps(dst) ? cast(src, dst.dtype()) : src;
  View from = broadcast_to(own, shape, what);
  if (from.size() == 0) return;
  std::vector<int64_t> read = index_offsets(from, axis, index);
  const int64_t step = dst.strides()[static_cast<int>(axis)], size = itemsize(dst.dtype());
  Loop<2> rest(without(dst.shape(), axis, 1),
               {without(from.strides(), axis, index.ndim()), without(dst.strides(), axis, 1)});
  int t = static_cast<int>(dst.dtype());
  CastRow assign = kernels().cast[t][t];
  AddToRow add = kernels().add_to[t];
  // In the order of the index, so that the result does not depend on threads: they share the rest.
  auto piece = [&](int64_t begin, int64_t end) {
    for (size_t i = 0; i < where.size(); ++i)
      rest.run(begin, end, [&](const int64_t* offset, int64_t length) {
        const char* x = from.data() + (read[i] + offset[0]) * size;
        char* y = dst.data() + (where[i] * step + offset[1]) * size;
        if (accumulate) {
          add(x, rest.inner(0), y, rest.inner(1), length);
        } else {
          assign(x, rest.inner(0), y, rest.inner(1), length);
        }
      });
  };
  if (dst.self_overlapping()) return piece(0, rest.total);
  int64_t grain = std::max<int64_t>(64, kGrain / static_cast<int64_t>(where.size()));
  parallel_for(rest.total, grain, piece);
}

namespace {

// `other` must have the parameter's shape and be of dtype `expected`.
void check_like(const View& param, const View& other, DType expected, const char* what) {
  if (other.shape() != param.shape() || other.dtype() != expected)
    throw std::invalid_argument(
        std::string(what) + ": " + name(other.dtype()) + " " + other.shape().str() +
        " does not match the parameter's " + name(param.dtype()) + " " + param.shape().str() +
        (expected == param.dtype() ? ""
                                   : std::string(", which takes ") + name(expected) + " here"));
}

// Runs `update` on compact memory; a strided view is worked on as a copy and written back.
template <class F>
void in_place(const View& a, const View* b, const View* c, F&& update) {
  View x = compact_or_copy(a);
  std::optional<View> y, z;
  if (b) y = compact_or_copy(*b);
  if (c) z = compact_or_copy(*c);
  update(x.data(), y ? y->data() : nullptr, z ? z->data() : nullptr);
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
  View g = grad.overlaps(param) ? cast(grad, grad.dtype()) : compact_or_copy(grad);
  SgdRow row = kernels().sgd[static_cast<int>(param.dtype())];
  const int64_t size = itemsize(param.dtype()), state_size = itemsize(state);
  in_place(param, velocity, nullptr, [&](char* p, char* v, char*) {
    parallel_for(param.size(), kGrain, [&](int64_t begin, int64_t end) {
      row(p + begin * size, g.data() + begin * size, v ? v + begin * state_size : nullptr,
          end - begin, f);
    });
  });
}

void adam_step(const View& param, const View& grad, const View& m, const View& v,
               const AdamFactors& f) {
  check_optimizer(param, "adam_step");
  const DType state = compute_type(param.dtype());
  check_like(param, grad, param.dtype(), "adam_step");
  check_like(param, m, state, "adam_step");
  check_like(param, v, state, "adam_step");
  View g = grad.overlaps(param) ? cast(grad, grad.dtype()) : compact_or_copy(grad);
  AdamRow row = kernels().adam[static_cast<int>(param.dtype())];
  const int64_t size = itemsize(param.dtype()), state_size = itemsize(state);
  in_place(param, &m, &v, [&](char* p, char* first, char* second) {
    parallel_for(param.size(), kGrain, [&](int64_t begin, int64_t end) {
      row(p + begin * size, g.data() + begin * size, first + begin * state_size,
          second + begin * state_size, end - begin, f);
    });
  });
}

}  // namespace cpu
}  // namespace needle
