// Matrix products: packed, blocked and register-tiled; the inner kernels are in isa/gemm.h.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "common/loop.h"
#include "cpu/blas.h"
#include "cpu/cpu.h"
#include "cpu/thread_pool.h"

namespace needle {
namespace cpu {

namespace {

// Rows of k in one block: a packed panel of B (k x nr) fits the first-level cache.
constexpr int64_t kDepth = 256;
constexpr int64_t kRowPanels = 16, kColumnPanels = 4;  // of one unit of parallel work
// Up to this many row panels B is read in place: it is used too few times to pay for packing.
constexpr int64_t kDirectPanels = 4;
constexpr int64_t kParallelRow = 1 << 16;  // multiply-adds of a row, for which memory is the bound
constexpr int64_t kParallelWork = 1 << 19;  // multiply-adds below which threads do not pay

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Free {
  void operator()(char* p) const { std::free(p); }
};
using Scratch = std::unique_ptr<char, Free>;

Scratch scratch(int64_t bytes) {
  int64_t rounded = ceil_div(std::max<int64_t>(bytes, 1), kAlignment) * kAlignment;
  Scratch s(static_cast<char*>(std::aligned_alloc(kAlignment, static_cast<size_t>(rounded))));
  if (!s) throw std::bad_alloc();
  return s;
}

// Few rows: A is packed once, columns of B are read where they are. Needs b_col == 1.
void gemm_direct(const GemmArgs& g, const GemmKernels& kernel, int64_t size) {
  const int64_t mr = kernel.mr, nr = kernel.nr;
  const int64_t row_panels = ceil_div(g.m, mr), column_panels = ceil_div(g.n, nr);
  const int64_t tail = g.n % nr;
  Scratch a = scratch(row_panels * g.k * mr * size);
  Scratch last = scratch(tail ? g.k * nr * size : 0);
  for (int64_t i = 0; i < row_panels; ++i)
    kernel.pack_a(g.a + i * mr * g.a_row * size, g.a_row, g.a_col,
                  static_cast<int>(std::min(mr, g.m - i * mr)), g.k, a.get() + i * g.k * mr * size);
  if (tail)
    kernel.pack_b(g.b + (column_panels - 1) * nr * size, g.b_row, 1, g.k, static_cast<int>(tail),
                  last.get());
  int64_t grain = std::max<int64_t>(1, kParallelWork / 2 / std::max<int64_t>(1, g.m * g.k * nr));
  parallel_for(column_panels, grain, [&](int64_t begin, int64_t end) {
    for (int64_t p = 0; p < g.k; p += kDepth) {
      const int64_t depth = std::min(kDepth, g.k - p);
      for (int64_t j = begin; j < end; ++j) {
        const bool packed = tail && j == column_panels - 1;
        const char* b = packed ? last.get() + p * nr * size : g.b + (p * g.b_row + j * nr) * size;
        for (int64_t i = 0; i < row_panels; ++i)
          kernel.tile(depth, a.get() + (i * g.k + p) * mr * size, b, packed ? nr : g.b_row,
                      g.c + (i * mr * g.ldc + j * nr) * size, g.ldc, p > 0,
                      static_cast<int>(std::min(mr, g.m - i * mr)),
                      static_cast<int>(std::min(nr, g.n - j * nr)));
      }
    }
  });
}

// One row, bound by reading B: threads take columns. Needs b_col == 1.
void gemm_row(const GemmArgs& g, const GemmKernels& kernel, int64_t size) {
  const int64_t block = 64, blocks = ceil_div(g.n, block);
  const int64_t grain = std::max<int64_t>(1, kParallelRow / std::max<int64_t>(1, g.k * block));
  parallel_for(blocks, grain, [&](int64_t begin, int64_t end) {
    const int64_t from = begin * block, to = std::min(end * block, g.n);
    kernel.row(g.k, g.a, g.a_col, g.b + from * size, g.b_row, g.c + from * size, to - from);
  });
}

void gemm_packed(const GemmArgs& g, const GemmKernels& kernel, int64_t size) {
  const int64_t mr = kernel.mr, nr = kernel.nr;
  const int64_t row_panels = ceil_div(g.m, mr), column_panels = ceil_div(g.n, nr);
  const int64_t row_units = ceil_div(row_panels, kRowPanels);
  const int64_t column_units = ceil_div(column_panels, kColumnPanels);
  const int64_t deepest = std::min(kDepth, g.k);
  Scratch a = scratch(row_panels * deepest * mr * size);
  Scratch b = scratch(column_panels * deepest * nr * size);
  const bool parallel = g.m * g.n * g.k >= kParallelWork;
  for (int64_t p = 0; p < g.k; p += kDepth) {
    const int64_t depth = std::min(kDepth, g.k - p);
    const int64_t panels = row_panels + column_panels;
    parallel_for(panels, parallel ? 4 : panels, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < std::min(end, row_panels); ++i)
        kernel.pack_a(g.a + (i * mr * g.a_row + p * g.a_col) * size, g.a_row, g.a_col,
                      static_cast<int>(std::min(mr, g.m - i * mr)), depth,
                      a.get() + i * depth * mr * size);
      for (int64_t j = std::max(begin, row_panels) - row_panels; j < end - row_panels; ++j)
        kernel.pack_b(g.b + (p * g.b_row + j * nr * g.b_col) * size, g.b_row, g.b_col, depth,
                      static_cast<int>(std::min(nr, g.n - j * nr)),
                      b.get() + j * depth * nr * size);
    });
    const int64_t units = row_units * column_units;
    parallel_for(units, parallel ? 1 : units, [&](int64_t begin, int64_t end) {
      for (int64_t unit = begin; unit < end; ++unit) {
        const int64_t i0 = unit / column_units * kRowPanels;
        const int64_t j0 = unit % column_units * kColumnPanels;
        for (int64_t j = j0; j < std::min(j0 + kColumnPanels, column_panels); ++j)
          for (int64_t i = i0; i < std::min(i0 + kRowPanels, row_panels); ++i)
            kernel.tile(depth, a.get() + i * depth * mr * size, b.get() + j * depth * nr * size, nr,
                        g.c + (i * mr * g.ldc + j * nr) * size, g.ldc, p > 0,
                        static_cast<int>(std::min(mr, g.m - i * mr)),
                        static_cast<int>(std::min(nr, g.n - j * nr)));
      }
    });
  }
}

// Splits the longer side of C among threads: BLAS itself runs on one.
bool gemm_by_blas(const GemmArgs& g, bool single, int64_t size) {
  if (g.m * g.n * g.k < kParallelWork || num_threads() == 1) return blas_gemm(g, single);
  const bool columns = g.n >= g.m;
  const int64_t block = 32, blocks = ceil_div(columns ? g.n : g.m, block);
  const int64_t per_piece = ceil_div(blocks, num_threads());
  const int64_t pieces = ceil_div(blocks, per_piece);
  GemmArgs probe = g;
  probe.m = probe.n = 0;
  bool done = blas_gemm(probe, single);
  if (!done) return false;
  parallel_for(pieces, 1, [&](int64_t begin, int64_t end) {
    const int64_t from = begin * per_piece * block;
    const int64_t to = std::min(end * per_piece * block, columns ? g.n : g.m);
    GemmArgs part = g;
    if (columns) {
      part.n = to - from;
      part.b += from * g.b_col * size;
      part.c += from * size;
    } else {
      part.m = to - from;
      part.a += from * g.a_row * size;
      part.c += from * g.ldc * size;
    }
    blas_gemm(part, single);
  });
  return true;
}

void gemm(const GemmArgs& g, DType t) {
  const int64_t size = itemsize(t);
  if (g.m == 0 || g.n == 0) return;
  if (g.k == 0) {
    for (int64_t i = 0; i < g.m; ++i)
      std::memset(g.c + i * g.ldc * size, 0, static_cast<size_t>(g.n * size));
    return;
  }
  const GemmKernels& kernel = kernels().gemm[static_cast<int>(t)];
  if (g.m == 1 && g.b_col == 1) return gemm_row(g, kernel, size);
  if (blas_loaded() && gemm_by_blas(g, t == DType::float32, size)) return;
  if (g.b_col == 1 && g.m <= kDirectPanels * kernel.mr) {
    gemm_direct(g, kernel, size);
  } else {
    gemm_packed(g, kernel, size);
  }
}

template <class T, class U>
void integer_gemm(const GemmArgs& g) {
  const T *a = reinterpret_cast<const T*>(g.a), *b = reinterpret_cast<const T*>(g.b);
  U* c = reinterpret_cast<U*>(g.c);
  parallel_for(g.m, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, g.n * g.k)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i) {
                   U* row = c + i * g.ldc;
                   std::fill_n(row, g.n, U(0));
                   for (int64_t p = 0; p < g.k; ++p) {
                     const U x = static_cast<U>(a[i * g.a_row + p * g.a_col]);
                     for (int64_t j = 0; j < g.n; ++j)
                       row[j] += x * static_cast<U>(b[p * g.b_row + j * g.b_col]);
                   }
                 }
               });
}

void run(const GemmArgs& g, DType t) {
  if (t == DType::int32) return integer_gemm<int32_t, uint32_t>(g);
  if (t == DType::int64) return integer_gemm<int64_t, uint64_t>(g);
  gemm(g, t);
}

Dims leading_dims(const Dims& d, int drop) {
  Dims out;
  for (int i = 0; i < d.ndim - drop; ++i) out.push(d[i]);
  return out;
}

}  // namespace

View matmul(const View& a, const View& b) {
  const int da = a.ndim(), db = b.ndim();
  if (da < 2 || db < 2 || a.shape()[da - 1] != b.shape()[db - 2])
    throw std::invalid_argument("matmul: shapes " + a.shape().str() + " and " + b.shape().str() +
                                " do not match (the last axis of the first, the last but one of "
                                "the second)");
  DType t = promote(a.dtype(), b.dtype());
  if (t == DType::boolean)
    return cast(matmul(cast(a, DType::int64), cast(b, DType::int64)), DType::boolean);
  if (a.dtype() != t) return matmul(cast(a, t), b);
  if (b.dtype() != t) return matmul(a, cast(b, t));

  Dims batch_a = leading_dims(a.shape(), 2), batch_b = leading_dims(b.shape(), 2);
  Dims batch = broadcast_shapes(batch_a, batch_b, "matmul");
  GemmArgs g{};
  g.m = a.shape()[da - 2];
  g.k = a.shape()[da - 1];
  g.n = b.shape()[db - 1];
  g.a_row = a.strides()[da - 2];
  g.a_col = a.strides()[da - 1];
  g.b_row = b.strides()[db - 2];
  g.b_col = b.strides()[db - 1];
  g.ldc = g.n;
  // An axis of extent 1 has no stride to speak of; 1 lets it count as contiguous.
  if (g.k == 1) g.a_col = g.b_row = 1;
  if (g.n == 1) g.b_col = 1;
  Dims shape = batch;
  shape.push(g.m);
  shape.push(g.n);
  View out = View::empty(t, shape);
  if (out.size() == 0) return out;
  g.a = a.data();
  g.b = b.data();
  g.c = out.data();

  // One matrix on the right for the whole batch, rows evenly spaced: one product.
  Loop<1> rows(leading_dims(a.shape(), 1), {leading_dims(a.strides(), 1)});
  if (checked_size(batch_b, 1) == 1 && rows.ndim == 1 && batch == batch_a) {
    g.m = rows.total;
    g.a_row = rows.inner(0);
    run(g, t);
    return out;
  }
  const int64_t size = itemsize(t), c_step = g.m * g.n;
  auto strides = [&](const View& v, int ndim) {
    Dims s;
    const int lead = batch.ndim - (ndim - 2);
    for (int i = 0; i < batch.ndim; ++i)
      s.push(i < lead || v.shape()[i - lead] == 1 ? 0 : v.strides()[i - lead]);
    return s;
  };
  Loop<2> loop(batch, {strides(a, da), strides(b, db)});
  // Scratch memory is asked for inside: a failure on a worker is carried out of the parallel part.
  std::atomic<bool> failed{false};
  int64_t grain = std::max<int64_t>(1, kParallelWork / 2 / std::max<int64_t>(1, g.m * g.n * g.k));
  if (loop.total < num_threads()) grain = loop.total;  // few large ones: threads inside each
  parallel_for(loop.total, grain, [&](int64_t begin, int64_t end) {
    int64_t index = begin;
    loop.run(begin, end, [&](const int64_t* offset, int64_t n) {
      for (int64_t i = 0; i < n; ++i, ++index) {
        GemmArgs one = g;
        one.a += (offset[0] + i * loop.inner(0)) * size;
        one.b += (offset[1] + i * loop.inner(1)) * size;
        one.c += index * c_step * size;
        try {
          run(one, t);
        } catch (const std::bad_alloc&) {
          failed = true;
        }
      }
    });
  });
  if (failed) throw std::bad_alloc();
  return out;
}

}  // namespace cpu
}  // namespace needle
