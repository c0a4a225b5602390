// Copies, casts and fills.
#include "cuda/kernels.h"

namespace needle {
namespace cuda {

// Copies bits, or converts with one rounding.
template <class In, class Out>
NEEDLE_HD Out converted(In x) {
  if constexpr (std::is_same_v<In, Out> && !std::is_same_v<In, Bool>)
    return x;
  else
    return Io<Out>::store(for_store<Out>(Io<In>::load(x)));
}

template <class In, class Out>
__global__ void __launch_bounds__(kThreads) copy_packed(const In* x, Out* out, int64_t n) {
  constexpr int kPack = kPackOf<In, Out>;
  const int64_t packs = n / kPack;
  NEEDLE_ROLLED
  for (int64_t i = grid_index(); i < packs; i += grid_step()) {
    const Pack<In, kPack> from = reinterpret_cast<const Pack<In, kPack>*>(x)[i];
    Pack<Out, kPack> to;
    for (int j = 0; j < kPack; ++j) to.at[j] = converted<In, Out>(from.at[j]);
    reinterpret_cast<Pack<Out, kPack>*>(out)[i] = to;
  }
  NEEDLE_ROLLED
  for (int64_t i = packs * kPack + grid_index(); i < n; i += grid_step())
    out[i] = converted<In, Out>(x[i]);
}

template <class In, class Out>
__global__ void __launch_bounds__(kThreads) copy_strided(Layout<2> layout, const In* x, Out* out) {
  NEEDLE_ROLLED
  for (int64_t i = grid_index(); i < layout.total; i += grid_step()) {
    int64_t at[2];
    layout.locate(i, at);
    out[at[1]] = converted<In, Out>(x[at[0]]);
  }
}

constexpr int kTile = 32, kTileRows = 8;

// x is contiguous along its columns, out along its rows. Tiles go through shared memory, so that
// both reads and writes are coalesced.
template <class S>
__global__ void __launch_bounds__(kTile* kTileRows)
    copy_transposed(const S* x, S* out, int64_t rows, int64_t columns, int64_t x_column,
                    int64_t out_row, int64_t batch, int64_t x_batch, int64_t out_batch) {
  __shared__ S tile[kTile][kTile + 1];  // one more column, so that columns use different banks
  const int tx = threadIdx.x % kTile, ty = threadIdx.x / kTile;
  const int64_t column_tiles = (columns + kTile - 1) / kTile;
  const int64_t row_tiles = (rows + kTile - 1) / kTile, tiles = column_tiles * row_tiles * batch;
  for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    const int64_t b = t / (column_tiles * row_tiles), in_batch = t % (column_tiles * row_tiles);
    const int64_t r0 = in_batch / column_tiles * kTile, c0 = in_batch % column_tiles * kTile;
    for (int i = ty; i < kTile; i += kTileRows)
      if (c0 + i < columns && r0 + tx < rows)
        tile[i][tx] = x[b * x_batch + (c0 + i) * x_column + r0 + tx];
    __syncthreads();
    for (int i = ty; i < kTile; i += kTileRows)
      if (r0 + i < rows && c0 + tx < columns)
        out[b * out_batch + (r0 + i) * out_row + c0 + tx] = tile[tx][i];
    __syncthreads();
  }
}

// One thread writes element after element: if several have one address, the last wins.
template <class In, class Out>
__global__ void copy_ordered(Layout<2> layout, const In* x, Out* out) {
  for (int64_t i = 0; i < layout.total; ++i) {
    int64_t at[2];
    layout.locate(i, at);
    out[at[1]] = converted<In, Out>(x[at[0]]);
  }
}

// Copies (rows, columns) or (batch, rows, columns) if out's columns and x's rows are contiguous.
// Returns false for other layouts.
template <class S>
bool run_transposed(const Work& work, const Loop<2>& loop, const S* x, S* out) {
  if (loop.ndim < 2 || loop.ndim > 3) return false;
  const int r = loop.ndim - 2, c = loop.ndim - 1;
  if (loop.strides[0][r] != 1 || loop.strides[1][c] != 1) return false;
  if (loop.shape[r] < kTileRows || loop.shape[c] < kTileRows) return false;
  const int64_t batch = r == 1 ? loop.shape[0] : 1;
  const int64_t tiles = batch * ceil_div(loop.shape[r], kTile) * ceil_div(loop.shape[c], kTile);
  work.launch(copy_transposed<S>, grid_for(work.device(), tiles, 1), kTile * kTileRows, x, out,
              loop.shape[r], loop.shape[c], loop.strides[0][c], loop.strides[1][r], batch,
              r == 1 ? loop.strides[0][0] : 0, r == 1 ? loop.strides[1][0] : 0);
  return true;
}

template <class In, class Out>
void run_copy(const Loop<2>& loop, const View& from, const View& to, bool ordered) {
  const Work work("copy", {&from, &to});
  const In* x = data_of<const In>(from);
  Out* out = data_of<Out>(to);
  if (ordered) {
    work.launch(copy_ordered<In, Out>, Grid(), 1, Layout<2>(loop), x, out);
    return;
  }
  constexpr int kPack = kPackOf<In, Out>;
  const bool flat = loop.ndim == 1 && loop.inner(0) == 1 && loop.inner(1) == 1;
  if (flat && aligned<In, kPack>(x) && aligned<Out, kPack>(out)) {
    const Grid grid = grid_for(work.device(), loop.total, int64_t{kThreads} * kPack);
    work.launch(copy_packed<In, Out>, grid, kThreads, x, out, loop.total);
    return;
  }
  if constexpr (std::is_same_v<In, Out>)
    if (run_transposed(work, loop, x, out)) return;
  const Grid grid = grid_for(work.device(), loop.total, kThreads);
  work.launch(copy_strided<In, Out>, grid, kThreads, Layout<2>(loop), x, out);
}

template <class S>
__global__ void __launch_bounds__(kThreads) fill_kernel(Layout<1> layout, S value, S* out) {
  NEEDLE_ROLLED
  for (int64_t i = grid_index(); i < layout.total; i += grid_step()) {
    int64_t at[1];
    layout.locate(i, at);
    out[at[0]] = value;
  }
}

}  // namespace cuda

namespace device {

void copy(const Loop<2>& loop, const View& from, const View& to, bool ordered) {
  using namespace cuda;
  if (from.dtype() == to.dtype() && from.dtype() != DType::boolean)
    return with_bits(to.dtype(), [&](auto type) {
      using S = typename decltype(type)::type;
      run_copy<S, S>(loop, from, to, ordered);
    });
  if (is_small_integer(from.dtype()))
    return with_small(from.dtype(), [&](auto in) {
      run_copy<typename decltype(in)::type, int32_t>(loop, from, to, ordered);
    });
  if (is_small_integer(to.dtype()))
    return with_small(to.dtype(), [&](auto out) {
      run_copy<int32_t, typename decltype(out)::type>(loop, from, to, ordered);
    });
  with_any(from.dtype(), [&](auto in) {
    with_any(to.dtype(), [&](auto out) {
      using In = typename decltype(in)::type;
      using Out = typename decltype(out)::type;
      if constexpr (!std::is_same_v<In, Out> || std::is_same_v<In, Bool>)
        run_copy<In, Out>(loop, from, to, ordered);
    });
  });
}

void fill(const Loop<1>& loop, const Element& value, const View& to) {
  using namespace cuda;
  const Work work("fill", {&to});
  with_bits(to.dtype(), [&](auto type) {
    using S = typename decltype(type)::type;
    S bits;
    __builtin_memcpy(&bits, &value, sizeof bits);
    const Grid grid = grid_for(work.device(), loop.total, kThreads);
    work.launch(fill_kernel<S>, grid, kThreads, Layout<1>(loop), bits, data_of<S>(to));
  });
}

void fill_bytes(const View& to, int byte) {
  if (to.size() == 0) return;
  const cuda::Work work("fill", {&to});
  work.check(cudaMemsetAsync(to.data(), byte, static_cast<size_t>(to.size() * itemsize(to.dtype())),
                             work.stream()));
}

}  // namespace device
}  // namespace needle
