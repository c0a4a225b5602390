// Reductions. A block computes some outputs; several threads reduce each output. A long reduction
// with few outputs is cut into chunks, and a second kernel merges the chunks' results. The cuts
// depend only on sizes, so results are the same each time.
#include <algorithm>

#include "cuda/kernels.h"
#include "cuda/transfer.h"

namespace needle {
namespace cuda {

// The kinds of reduction: Acc is the accumulator type, Result the type of the result.

// Sums and products: floats in double, integers in int64.
template <class Op, class S, class R>
struct Fold {
  using Acc = std::conditional_t<Kind<typename Io<S>::C>::floating, double, int64_t>;
  using In = S;
  using Result = R;
  // The identity: 1 for products, 0 for sums.
  NEEDLE_HD static Acc start(const S*) { return Op::at(Acc(1), Acc(1)) == Acc(1) ? 1 : 0; }
  NEEDLE_HD static Acc start_merge(const Acc*) { return start(nullptr); }
  NEEDLE_HD static Acc step(Acc a, S x, int64_t) { return Op::at(a, convert<Acc>(Io<S>::load(x))); }
  NEEDLE_HD static Acc merge(Acc a, Acc b) { return Op::at(a, b); }
  NEEDLE_HD static R finish(Acc a) { return Io<R>::store(for_store<R>(a)); }
};

// Maxima and minima start from the first element; taking it again changes nothing.
template <class Op, class S>
struct Select {
  using Acc = typename Io<S>::C;
  using In = S;
  using Result = S;
  NEEDLE_HD static Acc start(const S* first) { return Io<S>::load(*first); }
  NEEDLE_HD static Acc start_merge(const Acc* first) { return *first; }
  NEEDLE_HD static Acc step(Acc a, S x, int64_t) { return Op::at(a, Io<S>::load(x)); }
  NEEDLE_HD static Acc merge(Acc a, Acc b) { return Op::at(a, b); }
  NEEDLE_HD static S finish(Acc a) { return Io<S>::store(a); }
};

template <class C>
struct Found {
  C value;
  int64_t at;
};

// The first position of the maximum (minimum); NaN is above (below) all numbers.
template <class S, bool kMax>
struct Arg {
  using C = typename Io<S>::C;
  using Acc = Found<C>;
  using In = S;
  using Result = int64_t;
  NEEDLE_HD static Acc start(const S* first) { return {Io<S>::load(*first), 0}; }
  NEEDLE_HD static Acc start_merge(const Acc* first) { return *first; }
  NEEDLE_HD static Acc step(Acc a, S x, int64_t at) { return merge(a, {Io<S>::load(x), at}); }
  NEEDLE_HD static Acc merge(Acc a, Acc b) {
    const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
    bool take_b;
    if (a_nan || b_nan)
      take_b = b_nan && (!a_nan || b.at < a.at);
    else if (a.value == b.value)
      take_b = b.at < a.at;
    else
      take_b = kMax ? b.value > a.value : b.value < a.value;
    return take_b ? b : a;
  }
  NEEDLE_HD static int64_t finish(Acc a) { return a.at; }
};

// How a block's threads share its work: `reducers` threads for each of `outputs` outputs. Adjacent
// threads have adjacent outputs if `columns`, else adjacent terms of one output.
struct Shares {
  int outputs, reducers;
  bool columns;
};

template <class How, bool kMerge, class In>
NEEDLE_HD typename How::Acc taken(typename How::Acc acc, In x, int64_t at) {
  if constexpr (kMerge)
    return How::merge(acc, x);
  else
    return How::step(acc, x, at);
}

// kPartial writes an Acc per chunk to `out`; kMerge reads these chunks.
template <class How, bool kMerge, bool kPartial, class In, class Out>
__global__ void __launch_bounds__(kThreads)
    reduce_kernel(Layout<1> kept, Layout<1> reduced, const In* x, Out* out, Shares shares) {
  using Acc = typename How::Acc;
  __shared__ Acc held[kThreads];
  const int tid = static_cast<int>(threadIdx.x);
  const int output = shares.columns ? tid % shares.outputs : tid / shares.reducers;
  const int reducer = shares.columns ? tid / shares.outputs : tid % shares.reducers;
  const int next = shares.columns ? shares.outputs : 1;  // distance between reducers of an output
  const int64_t chunk = blockIdx.y, chunks = gridDim.y, length = reduced.total;
  const int64_t from = length * chunk / chunks;
  const int64_t to = length * (chunk + 1) / chunks;
  for (int64_t base = static_cast<int64_t>(blockIdx.x) * shares.outputs; base < kept.total;
       base += static_cast<int64_t>(gridDim.x) * shares.outputs) {
    const int64_t o = base + output;
    if (o < kept.total) {
      int64_t at[1];
      kept.locate(o, at);
      const In* first = x + at[0];
      Acc acc;
      if constexpr (kMerge)
        acc = How::start_merge(first);
      else
        acc = How::start(first);
      if (reduced.ndim == 1) {
        const int64_t stride = reduced.strides[0][0];
        for (int64_t i = from + reducer; i < to; i += shares.reducers)
          acc = taken<How, kMerge>(acc, first[i * stride], i);
      } else {
        NEEDLE_ROLLED
        for (int64_t i = from + reducer; i < to; i += shares.reducers) {
          int64_t offset[1];
          reduced.locate(i, offset);
          acc = taken<How, kMerge>(acc, first[offset[0]], i);
        }
      }
      held[tid] = acc;
    }
    NEEDLE_ROLLED
    for (int width = shares.reducers / 2; width > 0; width /= 2) {
      __syncthreads();
      if (reducer < width && o < kept.total)
        held[tid] = How::merge(held[tid], held[tid + width * next]);
    }
    if (reducer == 0 && o < kept.total) {
      if constexpr (kPartial)
        out[chunk * kept.total + o] = held[tid];
      else
        out[o] = How::finish(held[tid]);
    }
    __syncthreads();
  }
}

int power_of_two_up_to(int64_t n, int most) {
  int p = 1;
  while (p < most && 2 * int64_t{p} <= n) p *= 2;
  return p;
}

constexpr int64_t kWantedBlocks = 512;  // enough to keep a device busy

struct Cut {
  Shares shares;
  int64_t blocks, chunks;
};

Cut cut(const Loop<1>& kept, const Loop<1>& reduced) {
  const int64_t outputs = kept.total, length = reduced.total;
  auto distance = [](int64_t stride) { return stride < 0 ? -stride : stride; };
  Cut c{};
  c.shares.columns = outputs > 1 && distance(kept.inner(0)) < distance(reduced.inner(0));
  int most = c.shares.columns ? 8 : kThreads;
  // Many short rows: a warp per row.
  if (!c.shares.columns && length < 2048 && outputs >= kWantedBlocks) most = 32;
  c.shares.reducers = power_of_two_up_to(length, most);
  c.shares.outputs = power_of_two_up_to(outputs, kThreads / c.shares.reducers);
  if (c.shares.columns && c.shares.outputs < 32) {
    c.shares.reducers = power_of_two_up_to(length, kThreads / c.shares.outputs);
  }
  c.blocks = ceil_div(outputs, c.shares.outputs);
  const int64_t rounds = length / c.shares.reducers;  // rounds per thread
  c.chunks = std::clamp<int64_t>(std::min(kWantedBlocks / c.blocks, rounds / 16), 1, 1024);
  return c;
}

Loop<1> evenly(int64_t n, int64_t step) {
  Dims shape, strides;
  shape.push(n);
  strides.push(step);
  return Loop<1>(shape, {strides});
}

template <class How, bool kMerge, bool kPartial, class In, class Out>
void launch_reduce(const Work& work, const Loop<1>& kept, const Loop<1>& reduced, const Cut& c,
                   const In* x, Out* out) {
  Grid grid = grid_for(work.device(), c.blocks, 1);
  grid.y = static_cast<unsigned>(c.chunks);
  const unsigned threads = static_cast<unsigned>(c.shares.outputs * c.shares.reducers);
  work.launch(reduce_kernel<How, kMerge, kPartial, In, Out>, grid, threads, Layout<1>(kept),
              Layout<1>(reduced), x, out, c.shares);
}

template <class How>
void run_reduce(const char* what, const View& x, const Split& s, const View& out) {
  using Acc = typename How::Acc;
  const Loop<1> kept(s.kept, {s.kept_strides}), reduced(s.reduced, {s.reduced_strides});
  Cut c = cut(kept, reduced);
  const auto* from = data_of<const typename How::In>(x);
  auto* to = data_of<typename How::Result>(out);
  if (c.chunks == 1) {
    const Work work(what, {&x, &out});
    launch_reduce<How, false, false>(work, kept, reduced, c, from, to);
    return;
  }
  const Scratch parts(what, x.device(), {c.chunks, kept.total, int64_t{sizeof(Acc)}});
  const Work work(what, {&x, &out});
  launch_reduce<How, false, true>(work, kept, reduced, c, from, parts.as<Acc>());
  const Loop<1> outputs = evenly(kept.total, 1), chunks = evenly(c.chunks, kept.total);
  Cut last = cut(outputs, chunks);
  last.chunks = 1;
  launch_reduce<How, true, false>(work, outputs, chunks, last, parts.as<const Acc>(), to);
}

template <class Op>
void fold(const char* what, const View& x, const Split& s, const View& out) {
  with_any(x.dtype(), [&](auto type) {
    using S = typename decltype(type)::type;
    using R = std::conditional_t<Kind<typename Io<S>::C>::floating, S, int64_t>;
    run_reduce<Fold<Op, S, R>>(what, x, s, out);
  });
}

template <class Op>
void select(const char* what, const View& x, const Split& s, const View& out) {
  with_any(x.dtype(), [&](auto type) {
    run_reduce<Select<Op, typename decltype(type)::type>>(what, x, s, out);
  });
}

}  // namespace cuda

namespace device {

View reduce(Reduction op, const View& x, const Split& s, DType out_type) {
  using namespace cuda;
  const char* what = kReductionNames[static_cast<int>(op)];
  View out = View::empty(out_type, s.shape, x.device());
  if (out.size() == 0) return out;
  switch (op) {
    case Reduction::sum:
      fold<fn::add>(what, x, s, out);
      break;
    case Reduction::prod:
      fold<fn::multiply>(what, x, s, out);
      break;
    case Reduction::max:
      select<fn::maximum>(what, x, s, out);
      break;
    default:
      select<fn::minimum>(what, x, s, out);
  }
  return out;
}

void arg_reduce(bool max, const View& x, const Split& s, const View& out) {
  using namespace cuda;
  with_any(x.dtype(), [&](auto type) {
    using S = typename decltype(type)::type;
    if (max)
      run_reduce<Arg<S, true>>("argmax", x, s, out);
    else
      run_reduce<Arg<S, false>>("argmin", x, s, out);
  });
}

int64_t least(const View& x) {
  Dims all;
  for (int i = 0; i < x.ndim(); ++i) all.push(i);
  const View found = nd::cast(nd::reduce(Reduction::min, x, all, false), DType::int64);
  int64_t value;
  cuda::read(found, &value);
  return value;
}

}  // namespace device
}  // namespace needle
