// Binary ops. A Python number is passed to the kernel by value, without a copy to the device.
#include "cuda/elementwise.h"
#include "cuda/kernels.h"

namespace needle {
namespace cuda {

// The i-th pack of an operand: its elements, or copies of its single value.
template <class S, int N>
NEEDLE_HD Pack<S, N> pack_at(const S* p, S value, int64_t i) {
  if (p != nullptr) return reinterpret_cast<const Pack<S, N>*>(p)[i];
  Pack<S, N> same;
  for (int j = 0; j < N; ++j) same.at[j] = value;
  return same;
}

template <class Op, class In, class Out>
__global__ void __launch_bounds__(kThreads)
    binary_packed(const In* a, In a_value, const In* b, In b_value, Out* out, int64_t n) {
  constexpr int kPack = kPackOf<In, Out>;
  const int64_t packs = n / kPack;
  NEEDLE_ROLLED
  for (int64_t i = grid_index(); i < packs; i += grid_step()) {
    const Pack<In, kPack> x = pack_at<In, kPack>(a, a_value, i);
    const Pack<In, kPack> y = pack_at<In, kPack>(b, b_value, i);
    Pack<Out, kPack> to;
    for (int j = 0; j < kPack; ++j)
      to.at[j] = Io<Out>::store(Op::at(Io<In>::load(x.at[j]), Io<In>::load(y.at[j])));
    reinterpret_cast<Pack<Out, kPack>*>(out)[i] = to;
  }
  NEEDLE_ROLLED
  for (int64_t i = packs * kPack + grid_index(); i < n; i += grid_step()) {
    const In x = a == nullptr ? a_value : a[i], y = b == nullptr ? b_value : b[i];
    out[i] = Io<Out>::store(Op::at(Io<In>::load(x), Io<In>::load(y)));
  }
}

template <class Op, class In, class Out>
__global__ void __launch_bounds__(kThreads)
    binary_strided(Layout<3> layout, const In* a, In a_value, const In* b, In b_value, Out* out) {
  NEEDLE_ROLLED
  for (int64_t i = grid_index(); i < layout.total; i += grid_step()) {
    int64_t at[3];
    layout.locate(i, at);
    const In x = a == nullptr ? a_value : a[at[0]], y = b == nullptr ? b_value : b[at[1]];
    out[at[2]] = Io<Out>::store(Op::at(Io<In>::load(x), Io<In>::load(y)));
  }
}

template <class Op, class In, class Out>
void run_binary(const char* what, const Loop<3>& loop, const Input& a, const Input& b,
                const View& out) {
  const Work work(what, {a.view, b.view, &out});
  const Operand1<In> x(a), y(b);
  Out* to = data_of<Out>(out);
  constexpr int kPack = kPackOf<In, Out>;
  // A null pointer counts as aligned.
  const bool flat = loop.ndim == 1 && loop.inner(2) == 1 &&
                    (x.p == nullptr || loop.inner(0) == 1) &&
                    (y.p == nullptr || loop.inner(1) == 1);
  if (flat && aligned<In, kPack>(x.p) && aligned<In, kPack>(y.p) && aligned<Out, kPack>(to)) {
    const Grid grid = grid_for(work.device(), loop.total, int64_t{kThreads} * kPack);
    work.launch(binary_packed<Op, In, Out>, grid, kThreads, x.p, x.value, y.p, y.value, to,
                loop.total);
    return;
  }
  const Grid grid = grid_for(work.device(), loop.total, kThreads);
  work.launch(binary_strided<Op, In, Out>, grid, kThreads, Layout<3>(loop), x.p, x.value, y.p,
              y.value, to);
}

template <class Op, Category kCategory>
void binary_of(const char* what, DType t, const Loop<3>& loop, const Input& a, const Input& b,
               const View& out) {
  auto run = [&](auto type) {
    using S = typename decltype(type)::type;
    using Out = std::conditional_t<gives_bools(kCategory), Bool, S>;
    run_binary<Op, S, Out>(what, loop, a, b, out);
  };
  if constexpr (!takes_floats(kCategory) && takes_bools(kCategory))
    with_integral(t, run);
  else if constexpr (!takes_floats(kCategory))
    with_integer(t, run);
  else if constexpr (takes_bools(kCategory))
    with_any(t, run);
  else if constexpr (takes_integers(kCategory))
    with_number(t, run);
  else
    with_floating(t, run);
}

// Returns a number as a double.
double value_of(const Element& e, DType t) {
  switch (t) {
    case DType::float64:
      return e.f64;
    case DType::float16:
      return Io<Float16>::load(Float16{e.u16});
    case DType::bfloat16:
      return Io<Bfloat16>::load(Bfloat16{e.u16});
    default:
      return e.f32;
  }
}

Loop<2> without_exponent(const Loop<3>& loop) {
  Dims shape, from, to;
  for (int d = 0; d < loop.ndim; ++d) {
    shape.push(loop.shape[d]);
    from.push(loop.strides[0][d]);
    to.push(loop.strides[2][d]);
  }
  return Loop<2>(shape, {from, to});
}

// Computes powers whose one exponent does not need pow, as on the CPU. Returns false for others.
bool simple_power(DType t, const Loop<3>& loop, const Input& a, const Input& b, const View& out) {
  if (!is_floating(t) || b.view != nullptr || a.view == nullptr) return false;
  const double e = value_of(b.scalar, t);
  if (e == 2) {
    device::unary(Unary::square, without_exponent(loop), *a.view, out);
  } else if (e == 0.5) {
    half_power(without_exponent(loop), *a.view, out);
  } else if (e == -1) {
    device::unary(Unary::reciprocal, without_exponent(loop), *a.view, out);
  } else if (e == 1) {
    device::binary(Binary::multiply, t, loop, a, b, out);
  } else {
    return false;
  }
  return true;
}

}  // namespace cuda

namespace device {

void binary(Binary op, DType t, const Loop<3>& loop, const Input& a, const Input& b,
            const View& out) {
  if (loop.total == 0) return;
  if (op == Binary::power && cuda::simple_power(t, loop, a, b, out)) return;
  switch (op) {
#define NEEDLE_BINARY(name, category) \
  case Binary::name:                  \
    return cuda::binary_of<cuda::fn::name, Category::category>(#name, t, loop, a, b, out);
#include "common/ops.inc"
#undef NEEDLE_BINARY
    case Binary::count:
      break;
  }
}

}  // namespace device
}  // namespace needle
