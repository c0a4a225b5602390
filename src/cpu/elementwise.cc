#include <cmath>
#include <cstring>
#include <limits>

#include "common/loop.h"
#include "cpu/cpu.h"
#include "cpu/thread_pool.h"

namespace needle {
namespace cpu {

namespace {

// Storage for one element, so that a scalar is an operand with stride 0.
union Element {
  float f32;
  double f64;
  int32_t i32;
  int64_t i64;
  uint8_t u8;
  uint16_t half;
};

bool fits(const Operand& s, DType t) {
  if (s.kind != 1) return true;
  if (t == DType::int32) return !s.big && s.integer >= INT32_MIN && s.integer <= INT32_MAX;
  return t != DType::int64 || !s.big;
}

// Truncates; what is out of range, NaN included, becomes the lowest value, as on x86 and in casts.
template <class To>
To to_integer(double x) {
  constexpr double limit = -static_cast<double>(std::numeric_limits<To>::min());
  return x >= -limit && x < limit ? static_cast<To>(x) : std::numeric_limits<To>::min();
}

Element element(const Operand& s, DType t, const char* what) {
  if (!fits(s, t))
    throw std::overflow_error(std::string(what) + ": Python integer " +
                              (s.big ? "" : std::to_string(s.integer) + " ") +
                              "is out of bounds for " + name(t));
  Element e{};
  double real = s.kind == 2 || s.big ? s.real : static_cast<double>(s.integer);
  switch (t) {
    case DType::float32:
      e.f32 = static_cast<float>(real);
      break;
    case DType::float64:
      e.f64 = real;
      break;
    case DType::int32:
      e.i32 = s.kind == 2 ? to_integer<int32_t>(s.real) : static_cast<int32_t>(s.integer);
      break;
    case DType::int64:
      e.i64 = s.kind == 2 ? to_integer<int64_t>(s.real) : s.integer;
      break;
    case DType::boolean:
      e.u8 = s.kind == 2 ? s.real != 0 : s.integer != 0 || s.big;
      break;
    case DType::float16:
    case DType::bfloat16:
      kernels().cast[static_cast<int>(DType::float64)][static_cast<int>(t)](&real, 0, &e.half, 0,
                                                                            1);
      break;
  }
  return e;
}

const char* at(const View& v, int64_t offset) { return v.data() + offset * itemsize(v.dtype()); }

// The op's operand as a view of dtype t: itself when it is one already.
const View& as_type(const View& x, DType t, std::optional<View>* storage) {
  if (x.dtype() == t) return x;
  *storage = cast(x, t);
  return **storage;
}

std::string unsupported(const char* op, DType t) {
  return std::string(op) + " is not defined for " + name(t);
}

// One operand of a binary op: where it starts, and its strides under the result's shape.
struct Source {
  std::optional<View> storage;
  Element scalar;
  const char* data;
  Dims strides;

  void bind(const Operand& x, DType t, const Dims& shape, const char* what) {
    if (x.view == nullptr) {
      scalar = element(x, t, what);
      data = reinterpret_cast<const char*>(&scalar);
      strides.ndim = shape.ndim;
      for (int i = 0; i < shape.ndim; ++i) strides[i] = 0;
      return;
    }
    const View& v = as_type(*x.view, t, &storage);
    data = v.data();
    strides = broadcast_strides(v, shape);
  }
};

DType common_type(const Operand& a, const Operand& b, const char* what) {
  if (a.view && b.view) return promote(a.view->dtype(), b.view->dtype());
  if (a.view) return promote_scalar(a.view->dtype(), b.kind);
  if (b.view) return promote_scalar(b.view->dtype(), a.kind);
  throw TypeError(std::string(what) + ": one operand must be an array");
}

Dims common_shape(const Operand& a, const Operand& b, const char* what) {
  if (a.view && b.view) return broadcast_shapes(a.view->shape(), b.view->shape(), what);
  return a.view ? a.view->shape() : b.view->shape();
}

// Scalars of logical ops count by truth, whatever dtype could hold them.
bool truth_needed(const Operand& x) { return x.view == nullptr && x.kind != 0; }
Operand truth(const Operand& x) {
  if (!truth_needed(x)) return x;
  Operand t;
  t.integer = x.kind == 2 ? x.real != 0 : x.integer != 0 || x.big;
  return t;
}

void refuse_negative_exponents(const Operand& exponent, DType t) {
  if (is_floating(t)) return;
  bool negative = exponent.view == nullptr && (exponent.integer < 0 || exponent.real < 0);
  if (exponent.view != nullptr && exponent.view->size() > 0 &&
      exponent.view->dtype() != DType::boolean) {
    Dims all;
    for (int i = 0; i < exponent.view->ndim(); ++i) all.push(i);
    View least = cast(reduce(Reduction::min, *exponent.view, all, false), DType::int64);
    negative = *reinterpret_cast<const int64_t*>(least.data()) < 0;
  }
  if (negative)
    throw std::invalid_argument("power: integers to negative integer powers are not allowed");
}

// Comparing with an integer the dtype cannot hold: the answer is the same for every element.
std::optional<View> compare_out_of_range(Binary op, const Operand& a, const Operand& b) {
  const Operand &array = a.view ? a : b, &scalar = a.view ? b : a;
  if (scalar.view || scalar.kind != 1) return std::nullopt;
  DType t = array.view->dtype();
  if (info(t).kind == 2 || fits(scalar, promote_scalar(t, 1))) return std::nullopt;
  bool scalar_larger = scalar.big ? scalar.real > 0 : scalar.integer > 0;
  bool a_larger = (&scalar == &a) == scalar_larger;
  bool result = op == Binary::not_equal ||
                ((op == Binary::greater || op == Binary::greater_equal) && a_larger) ||
                ((op == Binary::less || op == Binary::less_equal) && !a_larger);
  View out = View::empty(DType::boolean, array.view->shape());
  std::memset(out.data(), result, static_cast<size_t>(out.size()));
  return out;
}

// A new array for the results of an elementwise op. It has the layout of the first operand of its
// shape, as PyTorch's and NumPy's have: what is computed of a permuted array (channels last) stays
// cheap to read along with it.
View result(DType t, const Dims& shape, std::initializer_list<const View*> operands) {
  for (const View* v : operands) {
    if (v == nullptr || v->shape() != shape) continue;
    if (v->is_compact()) break;
    for (int i = 0; i < shape.ndim; ++i)
      if (shape[i] > 1 && v->strides()[i] <= 0) return View::empty(t, shape);
    return View::empty(t, shape, memory_order(shape, v->strides()));
  }
  return View::empty(t, shape);
}

// A loop over operands' strides in the order of `to` in memory, which the last of them belong to.
template <int N>
Loop<N> loop_along(const View& to, std::array<Dims, N> strides) {
  if (to.is_compact()) return Loop<N>(to.shape(), strides);
  const Dims order = memory_order(to.shape(), to.strides());
  for (Dims& s : strides) s = permuted(s, order);
  return Loop<N>(permuted(to.shape(), order), strides);
}

}  // namespace

void copy(const View& src, const View& dst) {
  View from = broadcast_to(src, dst.shape(), "copy");
  if (dst.size() == 0) return;
  if (src.overlaps(dst)) from = broadcast_to(cast(src, src.dtype()), dst.shape(), "copy");
  CastRow row = kernels().cast[static_cast<int>(from.dtype())][static_cast<int>(dst.dtype())];
  // Elements that share memory are written in order, by one thread.
  const bool ordered = dst.self_overlapping();
  const auto loop = ordered ? Loop<2>(dst.shape(), {from.strides(), dst.strides()})
                            : loop_along<2>(dst, {from.strides(), dst.strides()});
  const int64_t sx = loop.inner(0), sy = loop.inner(1);
  auto piece = [&](int64_t begin, int64_t end) {
    loop.run(begin, end, [&](const int64_t* offset, int64_t n) {
      row(at(from, offset[0]), sx, const_cast<char*>(at(dst, offset[1])), sy, n);
    });
  };
  if (ordered) return piece(0, loop.total);
  parallel_for(loop.total, kGrain, piece);
}

void fill(const View& dst, const Operand& value) {
  Element e = element(value, dst.dtype(), "fill");
  if (dst.size() == 0) return;
  CastRow row = kernels().cast[static_cast<int>(dst.dtype())][static_cast<int>(dst.dtype())];
  Loop<1> loop(dst.shape(), {dst.strides()});
  auto piece = [&](int64_t begin, int64_t end) {
    loop.run(begin, end, [&](const int64_t* offset, int64_t n) {
      row(&e, 0, const_cast<char*>(at(dst, offset[0])), loop.inner(0), n);
    });
  };
  if (dst.self_overlapping()) return piece(0, loop.total);
  parallel_for(loop.total, kGrain, piece);
}

View cast(const View& x, DType dtype) {
  View out = View::empty(dtype, x.shape());
  copy(x, out);
  return out;
}

View compact(const View& x) { return x.is_compact() ? x : cast(x, x.dtype()); }

View unary(Unary op, const View& x) {
  const OpInfo& row_info = kUnary[static_cast<int>(op)];
  DType t = row_info.category == Category::FLOAT ? floating_of(x.dtype()) : x.dtype();
  UnaryRow row = kernels().unary[static_cast<int>(op)][static_cast<int>(t)];
  if (row == nullptr) throw TypeError(unsupported(row_info.name, t));
  std::optional<View> storage;
  const View& in = as_type(x, t, &storage);
  View out =
      result(row_info.category == Category::PREDICATE ? DType::boolean : t, x.shape(), {&in});
  const Loop<2> loop = loop_along<2>(out, {in.strides(), out.strides()});
  parallel_for(loop.total, kGrain, [&](int64_t begin, int64_t end) {
    loop.run(begin, end, [&](const int64_t* offset, int64_t n) {
      row(at(in, offset[0]), loop.inner(0), const_cast<char*>(at(out, offset[1])), n);
    });
  });
  return out;
}

View binary(Binary op, const Operand& a, const Operand& b) {
  const OpInfo& row_info = kBinary[static_cast<int>(op)];
  if (row_info.category == Category::LOGICAL && (truth_needed(a) || truth_needed(b)))
    return binary(op, truth(a), truth(b));
  const char* what = row_info.name;
  DType t = common_type(a, b, what);
  Dims shape = common_shape(a, b, what);
  bool predicate = row_info.category == Category::PREDICATE;
  if (row_info.category == Category::TRUE_DIVIDE) t = floating_of(t);
  BinaryRow row = kernels().binary[static_cast<int>(op)][static_cast<int>(t)];
  if (row == nullptr) throw TypeError(unsupported(what, t));
  if (op == Binary::power && checked_size(shape, 1) > 0) refuse_negative_exponents(b, t);
  if (predicate)
    if (std::optional<View> constant = compare_out_of_range(op, a, b)) return *constant;
  Source x, y;
  x.bind(a, t, shape, what);
  y.bind(b, t, shape, what);
  bool boolean = predicate || row_info.category == Category::LOGICAL;
  View out = result(boolean ? DType::boolean : t, shape, {a.view, b.view});
  const int64_t size = itemsize(t), out_size = itemsize(out.dtype());
  const Loop<3> loop = loop_along<3>(out, {x.strides, y.strides, out.strides()});
  const int64_t sx = loop.inner(0), sy = loop.inner(1);
  parallel_for(loop.total, kGrain, [&](int64_t begin, int64_t end) {
    loop.run(begin, end, [&](const int64_t* offset, int64_t n) {
      row(x.data + offset[0] * size, sx, y.data + offset[1] * size, sy,
          out.data() + offset[2] * out_size, n);
    });
  });
  return out;
}

View where(const View& condition, const Operand& a, const Operand& b) {
  DType t;
  Dims shape = condition.shape();
  if (!a.view && !b.view) {
    int kind = std::max(a.kind, b.kind);
    t = kind == 0 ? DType::boolean : (kind == 1 ? DType::int64 : DType::float64);
  } else {
    t = common_type(a, b, "where");
    shape = broadcast_shapes(shape, common_shape(a, b, "where"), "where");
  }
  std::optional<View> storage;
  const View& mask = as_type(condition, DType::boolean, &storage);
  Source x, y;
  x.bind(a, t, shape, "where");
  y.bind(b, t, shape, "where");
  View out = result(t, shape, {a.view, b.view, &mask});
  WhereRow row = kernels().where[static_cast<int>(t)];
  const int64_t size = itemsize(t);
  const Loop<4> loop =
      loop_along<4>(out, {broadcast_strides(mask, shape), x.strides, y.strides, out.strides()});
  parallel_for(loop.total, kGrain, [&](int64_t begin, int64_t end) {
    loop.run(begin, end, [&](const int64_t* offset, int64_t n) {
      row(reinterpret_cast<const uint8_t*>(mask.data()) + offset[0], loop.inner(0),
          x.data + offset[1] * size, loop.inner(1), y.data + offset[2] * size, loop.inner(2),
          out.data() + offset[3] * size, n);
    });
  });
  return out;
}

}  // namespace cpu
}  // namespace needle
