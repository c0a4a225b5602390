// Unary ops, where, and other device functions without a file of their own.
#include "cuda/elementwise.h"
#include "cuda/kernels.h"

namespace needle {
namespace cuda {

template <class Op, class In, class Out>
__global__ void __launch_bounds__(kThreads) unary_packed(const In* x, Out* out, int64_t n) {
  constexpr int kPack = kPackOf<In, Out>;
  const int64_t packs = n / kPack;
  NEEDLE_ROLLED
  for (int64_t i = grid_index(); i < packs; i += grid_step()) {
    const Pack<In, kPack> from = reinterpret_cast<const Pack<In, kPack>*>(x)[i];
    Pack<Out, kPack> to;
    for (int j = 0; j < kPack; ++j) to.at[j] = Io<Out>::store(Op::at(Io<In>::load(from.at[j])));
    reinterpret_cast<Pack<Out, kPack>*>(out)[i] = to;
  }
  NEEDLE_ROLLED
  for (int64_t i = packs * kPack + grid_index(); i < n; i += grid_step())
    out[i] = Io<Out>::store(Op::at(Io<In>::load(x[i])));
}

template <class Op, class In, class Out>
__global__ void __launch_bounds__(kThreads) unary_strided(Layout<2> layout, const In* x, Out* out) {
  NEEDLE_ROLLED
  for (int64_t i = grid_index(); i < layout.total; i += grid_step()) {
    int64_t at[2];
    layout.locate(i, at);
    out[at[1]] = Io<Out>::store(Op::at(Io<In>::load(x[at[0]])));
  }
}

template <class Op, class In, class Out>
void run_unary(const char* what, const Loop<2>& loop, const View& x, const View& out) {
  const Work work(what, {&x, &out});
  const In* from = data_of<const In>(x);
  Out* to = data_of<Out>(out);
  constexpr int kPack = kPackOf<In, Out>;
  const bool flat = loop.ndim == 1 && loop.inner(0) == 1 && loop.inner(1) == 1;
  if (flat && aligned<In, kPack>(from) && aligned<Out, kPack>(to)) {
    const Grid grid = grid_for(work.device(), loop.total, int64_t{kThreads} * kPack);
    work.launch(unary_packed<Op, In, Out>, grid, kThreads, from, to, loop.total);
    return;
  }
  const Grid grid = grid_for(work.device(), loop.total, kThreads);
  work.launch(unary_strided<Op, In, Out>, grid, kThreads, Layout<2>(loop), from, to);
}

template <class Op, Category kCategory>
void unary_of(const char* what, const Loop<2>& loop, const View& x, const View& out) {
  auto run = [&](auto type) {
    using S = typename decltype(type)::type;
    using Out = std::conditional_t<gives_bools(kCategory), Bool, S>;
    run_unary<Op, S, Out>(what, loop, x, out);
  };
  if constexpr (!takes_floats(kCategory) && takes_bools(kCategory))
    with_integral(x.dtype(), run);
  else if constexpr (!takes_floats(kCategory))
    with_integer(x.dtype(), run);
  else if constexpr (takes_bools(kCategory))
    with_any(x.dtype(), run);
  else if constexpr (takes_integers(kCategory))
    with_number(x.dtype(), run);
  else
    with_floating(x.dtype(), run);
}

void half_power(const Loop<2>& loop, const View& x, const View& out) {
  unary_of<fn::half_power, Category::FLOAT>("power", loop, x, out);
}

template <class S>
__global__ void __launch_bounds__(kThreads)
    where_kernel(Layout<4> layout, const uint8_t* mask, const S* a, S a_value, const S* b,
                 S b_value, S* out) {
  NEEDLE_ROLLED
  for (int64_t i = grid_index(); i < layout.total; i += grid_step()) {
    int64_t at[4];
    layout.locate(i, at);
    const S x = a == nullptr ? a_value : a[at[1]], y = b == nullptr ? b_value : b[at[2]];
    out[at[3]] = mask[at[0]] != 0 ? x : y;
  }
}

}  // namespace cuda

namespace device {

int count() { return cuda::device_count(); }
int host_index() { return cuda::kHost; }

// Kernels for small integers would lengthen compilation by a half, so there are only kernels that
// move their bits, or convert them from and to int32.
bool casts(DType from, DType to) {
  if (from == to || from == DType::int32 || to == DType::int32) return true;
  return !is_small_integer(from) && !is_small_integer(to);
}
bool computes(DType t) { return !is_small_integer(t); }

void unary(Unary op, const Loop<2>& loop, const View& x, const View& out) {
  if (loop.total == 0) return;
  switch (op) {
#define NEEDLE_UNARY(name, category) \
  case Unary::name:                  \
    return cuda::unary_of<cuda::fn::name, Category::category>(#name, loop, x, out);
#include "common/ops.inc"
#undef NEEDLE_UNARY
    case Unary::count:
      break;
  }
}

void where(const Loop<4>& loop, const View& mask, const Input& a, const Input& b, const View& out) {
  if (loop.total == 0) return;
  const cuda::Work work("where", {&mask, a.view, b.view, &out});
  cuda::with_bits(out.dtype(), [&](auto type) {
    using S = typename decltype(type)::type;
    const cuda::Operand1<S> x(a), y(b);
    const cuda::Grid grid = cuda::grid_for(work.device(), loop.total, cuda::kThreads);
    const uint8_t* m = cuda::data_of<const uint8_t>(mask);
    work.launch(cuda::where_kernel<S>, grid, cuda::kThreads, cuda::Layout<4>(loop), m, x.p, x.value,
                y.p, y.value, cuda::data_of<S>(out));
  });
}

dlpack::DeviceRef dlpack_device(const Buffer& buffer) { return {dlpack::kCuda, buffer.device()}; }

std::optional<int> device_of_dlpack(dlpack::DeviceRef ref, std::string* why) {
  if (ref.type != dlpack::kCuda && ref.type != dlpack::kCudaManaged) {
    *why = "memory of DLPack device type " + std::to_string(ref.type) + " is not CUDA memory";
    return std::nullopt;
  }
  if (ref.id >= 0 && ref.id < cuda::device_count()) return ref.id;
  *why = "there is no CUDA device " + std::to_string(ref.id);
  return std::nullopt;
}

}  // namespace device
}  // namespace needle
