// Matmul. A block computes a tile of C: it loads a slice of A and a slice of B into shared memory,
// in the accumulator type, and each thread keeps a small square of the tile in registers.
#include "cuda/cublas.h"
#include "cuda/gemm.h"
#include "cuda/kernels.h"

namespace needle {
namespace cuda {

struct Sizes {
  int64_t m, n, k, a_row, a_col, b_row, b_col, ldc;
};

// A tile of kM x kN, with kK terms per slice and a square of kOwn x kOwn per thread.
template <class S, class A, int kM, int kN, int kK, int kOwn>
__global__ void __launch_bounds__((kM / kOwn) * (kN / kOwn), 2)
    gemm_kernel(Sizes z, Layout<2> batch, const S* a_all, const S* b_all, S* c_all,
                bool accumulate) {
  constexpr int kAcross = kN / kOwn, kDown = kM / kOwn, kBlock = kAcross * kDown;
  __shared__ A a_slice[kK][kM + 1];
  __shared__ A b_slice[kK][kN];
  const int t = static_cast<int>(threadIdx.x), tx = t % kAcross, ty = t / kAcross;
  const int64_t across = (z.n + kN - 1) / kN, tiles = across * ((z.m + kM - 1) / kM);
  for (int64_t step = blockIdx.y; step < batch.total; step += gridDim.y) {
    int64_t at[2];
    batch.locate(step, at);
    const S *a = a_all + at[0], *b = b_all + at[1];
    S* c = c_all + step * z.m * z.ldc;
    for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      const int64_t m0 = tile / across * kM, n0 = tile % across * kN;
      A sums[kOwn][kOwn] = {};
      for (int64_t k0 = 0; k0 < z.k; k0 += kK) {
        // Adjacent threads read adjacent elements, along whichever axis is contiguous.
        for (int e = t; e < kM * kK; e += kBlock) {
          const int i = z.a_col == 1 ? e / kK : e % kM, p = z.a_col == 1 ? e % kK : e / kM;
          const bool there = m0 + i < z.m && k0 + p < z.k;
          a_slice[p][i] = there ? Io<S>::load(a[(m0 + i) * z.a_row + (k0 + p) * z.a_col]) : A(0);
        }
        for (int e = t; e < kN * kK; e += kBlock) {
          const int j = z.b_col == 1 ? e % kN : e / kK, p = z.b_col == 1 ? e / kN : e % kK;
          const bool there = n0 + j < z.n && k0 + p < z.k;
          b_slice[p][j] = there ? Io<S>::load(b[(k0 + p) * z.b_row + (n0 + j) * z.b_col]) : A(0);
        }
        __syncthreads();
        for (int p = 0; p < kK; ++p) {
          A x[kOwn], y[kOwn];
          for (int i = 0; i < kOwn; ++i) x[i] = a_slice[p][ty + i * kDown];
          for (int j = 0; j < kOwn; ++j) y[j] = b_slice[p][tx + j * kAcross];
          for (int i = 0; i < kOwn; ++i)
            for (int j = 0; j < kOwn; ++j) sums[i][j] += x[i] * y[j];
        }
        __syncthreads();
      }
      for (int i = 0; i < kOwn; ++i)
        for (int j = 0; j < kOwn; ++j) {
          const int64_t row = m0 + ty + i * kDown, column = n0 + tx + j * kAcross;
          if (row >= z.m || column >= z.n) continue;
          S& to = c[row * z.ldc + column];
          to = Io<S>::store(accumulate ? static_cast<A>(Io<S>::load(to) + sums[i][j]) : sums[i][j]);
        }
    }
  }
}

constexpr int64_t kBigFrom = 1024;  // with this many 64 x 64 tiles, larger tiles keep a device busy

template <class S, class A, int kM, int kK, int kOwn>
void run_tiles(const Work& work, const GemmArgs& g, const Loop<2>& batch, bool accumulate) {
  const Sizes z{g.m, g.n, g.k, g.a_row, g.a_col, g.b_row, g.b_col, g.ldc};
  Grid grid;
  grid.x = static_cast<unsigned>(
      std::min<int64_t>(product({ceil_div(g.m, kM), ceil_div(g.n, kM)}), INT32_MAX));
  grid.y = static_cast<unsigned>(std::min<int64_t>(batch.total, 65535));
  work.launch(gemm_kernel<S, A, kM, kM, kK, kOwn>, grid, (kM / kOwn) * (kM / kOwn), z,
              Layout<2>(batch), reinterpret_cast<const S*>(g.a), reinterpret_cast<const S*>(g.b),
              reinterpret_cast<S*>(g.c), accumulate);
}

template <class S>
void run_gemm(const Work& work, const GemmArgs& g, const Loop<2>& batch, bool accumulate) {
  using A = typename Io<S>::C;
  if constexpr (sizeof(A) == 4 && Kind<A>::floating)
    if (product({ceil_div(g.m, 64), ceil_div(g.n, 64), batch.total}) >= kBigFrom)
      return run_tiles<S, A, 128, 8, 8>(work, g, batch, accumulate);
  run_tiles<S, A, 64, 16, 4>(work, g, batch, accumulate);
}

void multiply(const Work& work, const GemmArgs& g, DType t, const Loop<2>& batch, bool accumulate) {
  if (is_floating(t) && g.k > 0 && cublas_multiply(work, g, t, batch, accumulate)) return;
  switch (t) {
    // Signed integers wrap around if they are computed as unsigned.
    case DType::int32:
      return run_gemm<uint32_t>(work, g, batch, accumulate);
    case DType::int64:
      return run_gemm<uint64_t>(work, g, batch, accumulate);
    default:
      return with_floating(t, [&](auto type) {
        run_gemm<typename decltype(type)::type>(work, g, batch, accumulate);
      });
  }
}

}  // namespace cuda

namespace device {

bool multiplies(DType t) { return !is_small_integer(t); }

void gemm(const GemmArgs& g, DType t, const Loop<2>& batch, const View& a, const View& b,
          const View& out) {
  const cuda::Work work("matmul", {&a, &b, &out});
  cuda::multiply(work, g, t, batch, false);
}

}  // namespace device
}  // namespace needle
