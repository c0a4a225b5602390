// Elementwise functions: the dtypes, shapes and layouts of their results.
#include <algorithm>
#include <cstring>
#include <limits>

#include "common/device.h"
#define NEEDLE_ISA host
#include "common/scalar.h"

namespace needle {
namespace nd {

namespace {

bool fits(const Operand& s, DType t) {
  if (s.kind != 1) return true;
  if (info(t).kind != 1) return true;
  if (s.big || t == DType::int64) return !s.big;
  const int bits = info(t).dlpack_bits - (is_unsigned(t) ? 0 : 1);
  const int64_t above = int64_t{1} << bits;
  return s.integer < above && s.integer >= (is_unsigned(t) ? 0 : -above);
}

// Truncates; NaN and values out of range become the lowest value, as on x86 and in casts.
template <class To>
To to_integer(double x) {
  constexpr double limit = -static_cast<double>(std::numeric_limits<To>::min());
  return x >= -limit && x < limit ? static_cast<To>(x) : std::numeric_limits<To>::min();
}

// Returns the value of a scalar in at most 32 bits.
int32_t small(const Operand& s) {
  return s.kind == 2 ? to_integer<int32_t>(s.real) : static_cast<int32_t>(s.integer);
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
      e.i32 = small(s);
      break;
    case DType::int8:
      e.i8 = static_cast<int8_t>(small(s));
      break;
    case DType::uint8:
      e.u8 = static_cast<uint8_t>(small(s));
      break;
    case DType::int16:
      e.i16 = static_cast<int16_t>(small(s));
      break;
    case DType::uint16:
      e.u16 = static_cast<uint16_t>(small(s));
      break;
    case DType::int64:
      e.i64 = s.kind == 2 ? to_integer<int64_t>(s.real) : s.integer;
      break;
    case DType::boolean:
      e.u8 = s.kind == 2 ? s.real != 0 : s.integer != 0 || s.big;
      break;
    case DType::float16:
      e.u16 = host::Io<host::Float16>::store(host::to_odd(real)).raw;
      break;
    case DType::bfloat16:
      e.u16 = host::Io<host::Bfloat16>::store(host::to_odd(real)).raw;
      break;
  }
  return e;
}

// Returns the op's operand as a view of dtype t, which may be the operand itself.
const View& as_type(const View& x, DType t, std::optional<View>* storage) {
  if (x.dtype() == t) return x;
  *storage = cast(x, t);
  return **storage;
}

bool defined(Category c, DType t) {
  if (is_floating(t)) return takes_floats(c);
  return t == DType::boolean ? takes_bools(c) : takes_integers(c);
}

std::string unsupported(const char* op, DType t) {
  return std::string(op) + " is not defined for " + name(t);
}

// One operand of a binary op, and its strides under the result's shape.
struct Source {
  std::optional<View> storage;
  Input input;
  Dims strides;

  void bind(const Operand& x, DType t, const Dims& shape, const char* what) {
    if (x.view == nullptr) {
      input.scalar = element(x, t, what);
      strides.ndim = shape.ndim;
      for (int i = 0; i < shape.ndim; ++i) strides[i] = 0;
      return;
    }
    input.view = &as_type(*x.view, t, &storage);
    strides = broadcast_strides(*input.view, shape);
  }
};

// Returns the operand in a wider dtype; a scalar must fit the narrow dtype.
Operand as_wide(const Operand& x, DType t, DType wide, std::optional<View>* storage,
                const char* what) {
  if (x.view == nullptr) {
    element(x, t, what);
    return x;
  }
  Operand made;
  made.view = &as_type(*x.view, wide, storage);
  return made;
}

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

// Scalars of logical ops count by their truth value, even if no dtype could hold them.
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
    negative = device::least(*exponent.view) < 0;
  }
  if (negative)
    throw std::invalid_argument("power: integers to negative integer powers are not allowed");
}

// A comparison with an integer that the dtype cannot hold has one answer for all elements.
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
  View out = View::empty(DType::boolean, array.view->shape(), array.view->device());
  device::fill_bytes(out, result);
  return out;
}

// Makes a new array for the results of an elementwise op. As in PyTorch and NumPy, it has the
// layout of the first operand of its shape, so results computed from a permuted array (channels
// last) are cheap to read together with that array.
View result(DType t, const Dims& shape, int on, std::initializer_list<const View*> operands) {
  for (const View* v : operands) {
    if (v == nullptr || v->shape() != shape) continue;
    if (v->is_compact()) break;
    for (int i = 0; i < shape.ndim; ++i)
      if (shape[i] > 1 && v->strides()[i] <= 0) return View::empty(t, shape, on);
    return View::empty(t, shape, memory_order(shape, v->strides()), on);
  }
  return View::empty(t, shape, on);
}

// Makes a loop over operands' strides in the memory order of `to`; the last strides belong to `to`.
template <int N>
Loop<N> loop_along(const View& to, std::array<Dims, N> strides) {
  if (to.is_compact()) return Loop<N>(to.shape(), strides);
  const Dims order = memory_order(to.shape(), to.strides());
  for (Dims& s : strides) s = permuted(s, order);
  return Loop<N>(permuted(to.shape(), order), strides);
}

}  // namespace

void copy(const View& src, const View& dst) {
  same_device("copy", src, {&dst});
  if (!device::casts(src.dtype(), dst.dtype())) return copy(cast(src, DType::int32), dst);
  View from = broadcast_to(src, dst.shape(), "copy");
  if (dst.size() == 0) return;
  if (src.overlaps(dst)) from = broadcast_to(cast(src, src.dtype()), dst.shape(), "copy");
  const bool ordered = dst.self_overlapping();
  device::copy(ordered ? Loop<2>(dst.shape(), {from.strides(), dst.strides()})
                       : loop_along<2>(dst, {from.strides(), dst.strides()}),
               from, dst, ordered);
}

void fill(const View& dst, const Operand& value) {
  const Element e = element(value, dst.dtype(), "fill");
  if (dst.size() == 0) return;
  device::fill(Loop<1>(dst.shape(), {dst.strides()}), e, dst);
}

View cast(const View& x, DType dtype) {
  View out = View::empty(dtype, x.shape(), x.device());
  copy(x, out);
  return out;
}

View compact(const View& x) { return x.is_compact() ? x : cast(x, x.dtype()); }

View unary(Unary op, const View& x) {
  const OpInfo& row = kUnary[static_cast<int>(op)];
  const DType t = row.category == Category::FLOAT ? floating_of(x.dtype()) : x.dtype();
  if (!defined(row.category, t)) throw TypeError(unsupported(row.name, t));
  if (!device::computes(t)) {
    const View wide = unary(op, cast(x, compute_type(t)));
    return gives_bools(row.category) ? wide : cast(wide, t);
  }
  std::optional<View> storage;
  const View& in = as_type(x, t, &storage);
  View out = result(gives_bools(row.category) ? DType::boolean : t, x.shape(), x.device(), {&in});
  device::unary(op, loop_along<2>(out, {in.strides(), out.strides()}), in, out);
  return out;
}

View binary(Binary op, const Operand& a, const Operand& b) {
  const OpInfo& row = kBinary[static_cast<int>(op)];
  if (row.category == Category::LOGICAL && (truth_needed(a) || truth_needed(b)))
    return binary(op, truth(a), truth(b));
  const char* what = row.name;
  DType t = common_type(a, b, what);
  Dims shape = common_shape(a, b, what);
  if (row.category == Category::TRUE_DIVIDE) t = floating_of(t);
  if (!defined(row.category, t)) throw TypeError(unsupported(what, t));
  const View& first = a.view ? *a.view : *b.view;
  same_device(what, first, {b.view});
  if (op == Binary::power && checked_size(shape, 1) > 0) refuse_negative_exponents(b, t);
  if (row.category == Category::PREDICATE)
    if (std::optional<View> constant = compare_out_of_range(op, a, b)) return *constant;
  if (!device::computes(t)) {
    const DType wide = compute_type(t);
    std::optional<View> storage_a, storage_b;
    const View made =
        binary(op, as_wide(a, t, wide, &storage_a, what), as_wide(b, t, wide, &storage_b, what));
    return gives_bools(row.category) ? made : cast(made, t);
  }
  Source x, y;
  x.bind(a, t, shape, what);
  y.bind(b, t, shape, what);
  View out = result(gives_bools(row.category) ? DType::boolean : t, shape, first.device(),
                    {a.view, b.view});
  device::binary(op, t, loop_along<3>(out, {x.strides, y.strides, out.strides()}), x.input, y.input,
                 out);
  return out;
}

View where(const View& condition, const Operand& a, const Operand& b) {
  DType t;
  Dims shape = condition.shape();
  same_device("where", condition, {a.view, b.view});
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
  View out = result(t, shape, condition.device(), {a.view, b.view, &mask});
  device::where(
      loop_along<4>(out, {broadcast_strides(mask, shape), x.strides, y.strides, out.strides()}),
      mask, x.input, y.input, out);
  return out;
}

}  // namespace nd
}  // namespace needle
