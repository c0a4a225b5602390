// Gather, scatter and the optimizers' updates. Scattered results do not depend on the order in
// which threads run: positions are sorted, and one thread handles all occurrences of a position.
#include "cuda/kernels.h"
#include "cuda/sort.h"
#include "cuda/transfer.h"

namespace needle {
namespace cuda {

Dims without(const Dims& dims, int64_t axis, int count) {
  Dims out;
  for (int i = 0; i < dims.ndim; ++i)
    if (i < axis || i >= axis + count) out.push(dims[i]);
  return out;
}

Dims part(const Dims& dims, int64_t from, int count) {
  Dims out;
  for (int i = 0; i < count; ++i) out.push(dims[static_cast<int>(from) + i]);
  return out;
}

NEEDLE_HD inline int64_t position(const int64_t* index, int64_t i, int64_t extent) {
  const int64_t at = index[i];
  return at < 0 ? at + extent : at;
}

// Row-major out is (before, index, after); `rest` is x without the indexed axis.
template <class S>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(Layout<1> rest, const S* x, const int64_t* index, S* out, int64_t total,
                  int64_t count, int64_t after, int64_t extent, int64_t step) {
  for (int64_t i = grid_index(); i < total; i += grid_step()) {
    const int64_t row = i / after, before = row / count;
    int64_t at[1];
    rest.locate(before * after + (i - row * after), at);
    out[i] = x[at[0] + position(index, row - before * count, extent) * step];
  }
}

// `rest` iterates over `from` and `to` without the index's axes, `places` over the index's axes of
// `from`. Positions are in ascending order, and so are the places of each position in the index.
template <class S, Put kHow>
__global__ void __launch_bounds__(kThreads)
    scatter_kernel(Layout<2> rest, Layout<1> places, const S* from, const int64_t* sorted,
                   const int64_t* place, S* to, int64_t step) {
  const int64_t total = places.total * rest.total;
  for (int64_t i = grid_index(); i < total; i += grid_step()) {
    int64_t j = i / rest.total;
    const int64_t where = sorted[j];
    // One thread handles each position. For Put::set it has the position's last place, which wins;
    // otherwise it has the first place and goes through all of them.
    const int64_t neighbour = kHow == Put::set ? j + 1 : j - 1;
    if (neighbour >= 0 && neighbour < places.total && sorted[neighbour] == where) continue;
    int64_t at[2], read[1];
    rest.locate(i % rest.total, at);
    S* target = to + at[1] + where * step;
    if constexpr (kHow == Put::set) {
      places.locate(place[j], read);
      *target = from[at[0] + read[0]];
    } else {
      auto all = Io<S>::load(*target);
      for (; j < places.total && sorted[j] == where; ++j) {
        places.locate(place[j], read);
        const auto x = Io<S>::load(from[at[0] + read[0]]);
        if constexpr (kHow == Put::add) all = fn::add::at(all, x);
        if constexpr (kHow == Put::max) all = fn::maximum::at(all, x);
        if constexpr (kHow == Put::min) all = fn::minimum::at(all, x);
      }
      *target = Io<S>::store(all);
    }
  }
}

// `loop` iterates over the index and over x, whose axis has stride 0.
template <class S>
__global__ void __launch_bounds__(kThreads)
    take_along_kernel(Layout<1> loop, const S* x, const int64_t* index, S* out, int64_t extent,
                      int64_t step) {
  for (int64_t i = grid_index(); i < loop.total; i += grid_step()) {
    int64_t at[1];
    loop.locate(i, at);
    out[i] = x[at[0] + position(index, i, extent) * step];
  }
}

// Turns positions along an axis into positions in the whole row-major array.
__global__ void __launch_bounds__(kThreads)
    place_along_kernel(Layout<1> loop, const int64_t* index, int64_t* out, int64_t extent,
                       int64_t step) {
  for (int64_t i = grid_index(); i < loop.total; i += grid_step()) {
    int64_t at[1];
    loop.locate(i, at);
    out[i] = at[0] + position(index, i, extent) * step;
  }
}

// If elements of `to` share memory, one thread writes in order.
template <class S>
__global__ void scatter_ordered(Layout<2> rest, Layout<1> places, const S* from,
                                const int64_t* index, S* to, int64_t extent, int64_t step,
                                bool accumulate) {
  for (int64_t i = 0; i < places.total; ++i)
    for (int64_t r = 0; r < rest.total; ++r) {
      int64_t at[2], read[1];
      rest.locate(r, at);
      places.locate(i, read);
      S& target = to[at[1] + position(index, i, extent) * step];
      const S x = from[at[0] + read[0]];
      target = accumulate ? Io<S>::store(fn::add::at(Io<S>::load(target), Io<S>::load(x))) : x;
    }
}

// g + decay * p. Without weight decay it is g, even where p is infinite.
template <class V>
__device__ V decayed(V g, V p, V decay) {
  return decay == V(0) ? g : g + decay * p;
}

template <class S, class V>
__global__ void __launch_bounds__(kThreads)
    sgd_kernel(S* param, const S* grad, V* velocity, int64_t n, SgdFactors f) {
  const V lr = V(f.lr), momentum = V(f.momentum), gain = V(1 - f.dampening);
  const V decay = V(f.weight_decay);
  for (int64_t i = grid_index(); i < n; i += grid_step()) {
    const V p = Io<S>::load(param[i]), g = decayed<V>(Io<S>::load(grad[i]), p, decay);
    V move = g;
    if (velocity != nullptr) {
      move = momentum * velocity[i] + gain * g;
      velocity[i] = move;
    }
    param[i] = Io<S>::store(p - lr * move);
  }
}

template <class S, class V>
__global__ void __launch_bounds__(kThreads)
    adam_kernel(S* param, const S* grad, V* m, V* v, int64_t n, AdamFactors f) {
  const V lr = V(f.lr), b1 = V(f.beta1), b2 = V(f.beta2), c1 = V(1 - f.beta1), c2 = V(1 - f.beta2);
  const V eps = V(f.eps), k1 = V(f.correction1), k2 = V(f.correction2);
  const V decay = f.decoupled ? V(0) : V(f.weight_decay);
  const V keep = f.decoupled ? V(1 - f.lr * f.weight_decay) : V(1);
  for (int64_t i = grid_index(); i < n; i += grid_step()) {
    const V p = Io<S>::load(param[i]), g = decayed<V>(Io<S>::load(grad[i]), p, decay);
    const V first = b1 * m[i] + c1 * g, second = b2 * v[i] + c2 * g * g;
    m[i] = first;
    v[i] = second;
    param[i] = Io<S>::store(keep * p - lr * ((first / k1) / (fn::sqrt::at(second / k2) + eps)));
  }
}

[[noreturn]] void refuse_position(const View& index, int64_t extent, const char* what) {
  std::vector<int64_t> all(static_cast<size_t>(index.size()));
  read(index, all.data());
  for (const int64_t at : all)
    if (at < -extent || at >= extent)
      throw std::out_of_range(std::string(what) + ": index " + std::to_string(at) +
                              " is out of bounds for an axis of extent " + std::to_string(extent));
  throw std::logic_error("an index changed while it was checked");
}

bool inside(const View& index, int64_t extent) {
  if (const IndexRange* range = index.buffer()->range();
      range != nullptr && range->dtype == index.dtype() && range->low >= -extent &&
      range->high < extent)
    return true;  // the bounds are known, because the index came from the host
  Dims all;
  for (int i = 0; i < index.ndim(); ++i) all.push(i);
  int64_t low, high;
  read(nd::cast(nd::reduce(Reduction::min, index, all, false), DType::int64), &low);
  read(nd::cast(nd::reduce(Reduction::max, index, all, false), DType::int64), &high);
  return low >= -extent && high < extent;
}

}  // namespace cuda

namespace device {

Positions positions(const View& index, int64_t extent, const char* what) {
  const bool wide = index.dtype() == DType::int64;
  Positions at;
  at.extent = extent;
  if (index.size() > 0 && !cuda::inside(index, extent))
    cuda::refuse_position(nd::cast(index, DType::int64), extent, what);
  at.index = wide ? nd::compact(index) : nd::cast(index, DType::int64);
  return at;
}

void gather(const View& x, const Positions& at, const View& index, int64_t axis, const View& out) {
  using namespace cuda;
  const Loop<1> rest(without(x.shape(), axis, 1), {without(x.strides(), axis, 1)});
  int64_t after = 1;
  for (int i = static_cast<int>(axis) + 1; i < x.ndim(); ++i) after *= x.shape()[i];
  const int64_t step = x.strides()[static_cast<int>(axis)];
  const Work work("gather", {&x, &*at.index, &out});
  const Grid grid = grid_for(work.device(), out.size(), kThreads);
  with_bits(x.dtype(), [&](auto type) {
    using S = typename decltype(type)::type;
    const int64_t* positions = data_of<const int64_t>(*at.index);
    work.launch(gather_kernel<S>, grid, kThreads, Layout<1>(rest), data_of<const S>(x), positions,
                data_of<S>(out), out.size(), index.size(), after, at.extent, step);
  });
}

namespace {

// One thread handles all occurrences of a position.
void put(const char* what, const cuda::Layout<2>& rest, const cuda::Layout<1>& places,
         const View& to, const Positions& at, const View& from, int64_t step, Put how) {
  using namespace cuda;
  const int64_t n = places.total;
  const Grid grid = grid_for(to.device(), product({rest.total, n}), kThreads);
  const Sorter sorter(what, to.device(), n, at.extent);
  const Work work(what, {&to, &*at.index, &from});
  const Sorted sorted = sorter.run(work, data_of<const int64_t>(*at.index));
  auto launch = [&](auto type, auto kernel) {
    using S = typename decltype(type)::type;
    work.launch(kernel, grid, kThreads, rest, places, data_of<const S>(from), sorted.keys,
                sorted.places, data_of<S>(to), step);
  };
  if (how == Put::set)
    return with_bits(to.dtype(), [&](auto type) {
      launch(type, scatter_kernel<typename decltype(type)::type, Put::set>);
    });
  with_any(to.dtype(), [&](auto type) {
    using S = typename decltype(type)::type;
    if (how == Put::add) launch(type, scatter_kernel<S, Put::add>);
    if (how == Put::max) launch(type, scatter_kernel<S, Put::max>);
    if (how == Put::min) launch(type, scatter_kernel<S, Put::min>);
  });
}

Dims without_step(const Dims& strides, int64_t axis) {
  Dims out = strides;
  out[static_cast<int>(axis)] = 0;
  return out;
}

}  // namespace

void take_along(const View& x, const View& index, int64_t axis, const View& out) {
  using namespace cuda;
  const int64_t step = x.strides()[static_cast<int>(axis)];
  const Positions at = positions(index, x.shape()[static_cast<int>(axis)], "take_along");
  const Layout<1> loop(Loop<1>(index.shape(), {without_step(x.strides(), axis)}));
  const Work work("take_along", {&x, &*at.index, &out});
  with_bits(x.dtype(), [&](auto type) {
    using S = typename decltype(type)::type;
    work.launch(take_along_kernel<S>, grid_for(work.device(), out.size(), kThreads), kThreads, loop,
                data_of<const S>(x), data_of<const int64_t>(*at.index), data_of<S>(out), at.extent,
                step);
  });
}

void put_along(const View& to, const View& index, const View& from, int64_t axis, Put how) {
  using namespace cuda;
  const int64_t step = to.strides()[static_cast<int>(axis)];
  const Positions along = positions(index, to.shape()[static_cast<int>(axis)], "put_along");
  Dims flat;
  flat.push(index.size());
  Positions at;
  at.extent = to.size();
  at.index = View::empty(DType::int64, flat, to.device());
  {
    const Layout<1> loop(Loop<1>(index.shape(), {without_step(to.strides(), axis)}));
    const Work work("put_along", {&*along.index, &*at.index});
    work.launch(place_along_kernel, grid_for(work.device(), index.size(), kThreads), kThreads, loop,
                data_of<const int64_t>(*along.index), data_of<int64_t>(*at.index), along.extent,
                step);
  }
  put("put_along", Layout<2>(Loop<2>(Dims(), {Dims(), Dims()})),
      Layout<1>(Loop<1>(index.shape(), {from.strides()})), to, at, from, 1, how);
}

void scatter(const View& to, const Positions& at, const View& index, const View& from, int64_t axis,
             bool accumulate) {
  using namespace cuda;
  const char* what = accumulate ? "scatter_add" : "scatter";
  const Layout<2> rest(
      Loop<2>(without(to.shape(), axis, 1),
              {without(from.strides(), axis, index.ndim()), without(to.strides(), axis, 1)}));
  const Layout<1> places(Loop<1>(index.shape(), {part(from.strides(), axis, index.ndim())}));
  const int64_t step = to.strides()[static_cast<int>(axis)];
  if (!to.self_overlapping())
    return put(what, rest, places, to, at, from, step, accumulate ? Put::add : Put::set);
  const Work work(what, {&to, &*at.index, &from});
  auto launch = [&](auto type) {
    using S = typename decltype(type)::type;
    work.launch(scatter_ordered<S>, Grid(), 1, rest, places, data_of<const S>(from),
                data_of<const int64_t>(*at.index), data_of<S>(to), at.extent, step, accumulate);
  };
  // Small integers are only set here: nd::scatter adds in int32.
  if (is_small_integer(to.dtype())) return with_small(to.dtype(), launch);
  with_any(to.dtype(), launch);
}

void sgd_step(const View& param, const View& grad, const View* velocity, const SgdFactors& f) {
  using namespace cuda;
  const Work work("sgd_step", {&param, &grad, velocity});
  with_floating(param.dtype(), [&](auto type) {
    using S = typename decltype(type)::type;
    using V = typename Io<S>::C;
    work.launch(sgd_kernel<S, V>, grid_for(work.device(), param.size(), kThreads), kThreads,
                data_of<S>(param), data_of<const S>(grad),
                velocity != nullptr ? data_of<V>(*velocity) : nullptr, param.size(), f);
  });
}

void adam_step(const View& param, const View& grad, const View& m, const View& v,
               const AdamFactors& f) {
  using namespace cuda;
  const Work work("adam_step", {&param, &grad, &m, &v});
  with_floating(param.dtype(), [&](auto type) {
    using S = typename decltype(type)::type;
    using V = typename Io<S>::C;
    work.launch(adam_kernel<S, V>, grid_for(work.device(), param.size(), kThreads), kThreads,
                data_of<S>(param), data_of<const S>(grad), data_of<V>(m), data_of<V>(v),
                param.size(), f);
  });
}

}  // namespace device
}  // namespace needle
