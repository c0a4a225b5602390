// Matmul: packed, blocked and register-tiled; the inner kernels are in isa/gemm.h.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "common/device.h"
#include "cpu/blas.h"
#include "cpu/kernel_table.h"
#include "cpu/scratch.h"
#include "threads/thread_pool.h"

namespace needle {
namespace device {

namespace {

constexpr int64_t kRowPanels = 16, kColumnPanels = 4;  // per unit of parallel work
// With at most this many row panels, B is read in place: its few uses would not repay packing.
constexpr int64_t kDirectPanels = 4;
constexpr int64_t kShort = 32;  // up to this depth, packing costs more than it saves
constexpr int64_t kDotRows = 16, kDotDepth = 128;
constexpr int64_t kParallelRow = 1 << 16;   // multiply-adds of a row, which is memory-bound
constexpr int64_t kParallelWork = 1 << 19;  // multiply-adds below which threads do not pay off

constexpr const char* kNoScratch = "matmul: cannot allocate memory to pack its operands";

// Returns at least 1, because the result is a divisor.
int64_t work_of(std::initializer_list<int64_t> factors) {
  return std::max<int64_t>(1, product(factors));
}

// Few rows or few columns: B is read in place, and so is A if its rows are contiguous; otherwise A
// is packed once. Requires b_col == 1.
void gemm_direct(const GemmArgs& g, const GemmKernels& kernel, int64_t size) {
  const int64_t mr = kernel.mr, nr = kernel.nr;
  const int64_t row_panels = ceil_div(g.m, mr), column_panels = ceil_div(g.n, nr);
  const int64_t tail = g.n % nr;
  const bool pack = g.a_col != 1, by_rows = row_panels > column_panels;
  Scratch a = scratch({pack ? row_panels : 0, g.k, mr, size}, kNoScratch);
  Scratch last = scratch({tail ? g.k : 0, nr, size}, kNoScratch);
  for (int64_t i = 0; i < row_panels && pack; ++i)
    kernel.pack_a(g.a + i * mr * g.a_row * size, g.a_row, g.a_col,
                  static_cast<int>(std::min(mr, g.m - i * mr)), g.k, a.get() + i * g.k * mr * size);
  if (tail)
    kernel.pack_b(g.b + (column_panels - 1) * nr * size, g.b_row, 1, g.k, static_cast<int>(tail),
                  last.get());
  auto tile = [&](int64_t i, int64_t j, int64_t p) {
    const int64_t depth = std::min(kDepth, g.k - p), start = 0;
    const bool packed = tail && j == column_panels - 1;
    const char* b = packed ? last.get() + p * nr * size : g.b + (p * g.b_row + j * nr) * size;
    const int64_t ldb = packed ? nr : g.b_row;
    const int rows = static_cast<int>(std::min(mr, g.m - i * mr));
    const int cols = static_cast<int>(std::min(nr, g.n - j * nr));
    char* c = g.c + (i * mr * g.ldc + j * nr) * size;
    if (pack)
      return kernel.tile(depth, a.get() + (i * g.k + p) * mr * size, b, ldb, c, g.ldc, p > 0, rows,
                         cols);
    const void* rows_at[kMaxTileRows];
    for (int r = 0; r < rows; ++r) rows_at[r] = g.a + (i * mr + r) * g.a_row * size;
    kernel.tile_rows(1, &p, &start, depth, rows_at, b, ldb, c, g.ldc, p > 0, rows, cols);
  };
  const int64_t outer = by_rows ? row_panels : column_panels;
  const int64_t inner = by_rows ? column_panels : row_panels;
  const int64_t work = product({g.m, g.n, g.k}) / outer;
  parallel_for(outer, std::max<int64_t>(1, kParallelWork / 2 / std::max<int64_t>(1, work)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t p = 0; p < g.k; p += kDepth)
                   for (int64_t o = begin; o < end; ++o)
                     for (int64_t i = 0; i < inner; ++i) tile(by_rows ? o : i, by_rows ? i : o, p);
               });
}

// A short reduction over contiguous columns of A and rows of B, as in the gradient of a weight:
// nothing is packed, because writing C takes most of the time. Requires a_row == b_col == 1.
void gemm_outer(const GemmArgs& g, const GemmKernels& kernel, int64_t size) {
  const int64_t mr = kernel.mr, nr = kernel.nr;
  const int64_t row_panels = ceil_div(g.m, mr), column_panels = ceil_div(g.n, nr);
  const int64_t tail = g.n % nr;
  Scratch last = scratch({tail ? g.k : 0, nr, size}, kNoScratch);
  if (tail)
    kernel.pack_b(g.b + (column_panels - 1) * nr * size, g.b_row, 1, g.k, static_cast<int>(tail),
                  last.get());
  int64_t offsets[kShort];
  for (int64_t p = 0; p < g.k; ++p) offsets[p] = p * g.a_col;
  const int64_t grain = std::max<int64_t>(1, kParallelWork / 4 / work_of({g.n, g.k, mr}));
  parallel_for(row_panels, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      for (int64_t j = 0; j < column_panels; ++j) {
        const bool packed = tail && j == column_panels - 1;
        kernel.tile_columns(g.k, g.a + i * mr * size, offsets,
                            packed ? last.get() : g.b + j * nr * size, packed ? nr : g.b_row,
                            g.c + (i * mr * g.ldc + j * nr) * size, g.ldc, false,
                            static_cast<int>(std::min(mr, g.m - i * mr)),
                            static_cast<int>(std::min(nr, g.n - j * nr)));
      }
  });
}

// Few rows times a transposed matrix: dot products of contiguous rows without packing. Requires
// a_col == b_row == 1.
void gemm_dots(const GemmArgs& g, const GemmKernels& kernel, int64_t size) {
  const int64_t tile = kDotTile, column_tiles = ceil_div(g.n, tile);
  const int64_t grain = std::max<int64_t>(1, kParallelWork / 4 / work_of({g.m, g.k, tile}));
  parallel_for(column_tiles, grain, [&](int64_t begin, int64_t end) {
    for (int64_t j = begin; j < end; ++j)
      for (int64_t i = 0; i < g.m; i += tile)
        kernel.dot_tile(g.k, g.a + i * g.a_row * size, g.a_row, g.b + j * tile * g.b_col * size,
                        g.b_col, g.c + (i * g.ldc + j * tile) * size, g.ldc,
                        static_cast<int>(std::min(tile, g.m - i)),
                        static_cast<int>(std::min(tile, g.n - j * tile)));
  });
}

// One row, bound by reading B: threads divide the columns. Requires b_col == 1.
void gemm_row(const GemmArgs& g, const GemmKernels& kernel, int64_t size) {
  const int64_t block = 64, blocks = ceil_div(g.n, block);
  const int64_t grain = std::max<int64_t>(1, kParallelRow / work_of({g.k, block}));
  parallel_for(blocks, grain, [&](int64_t begin, int64_t end) {
    const int64_t from = begin * block, to = std::min(end * block, g.n);
    kernel.row(g.k, g.a, g.a_col, g.b + from * size, g.b_row, g.c + from * size, to - from);
  });
}

void gemm_packed(const GemmArgs& g, const GemmKernels& kernel, int64_t size) {
  const int64_t mr = kernel.mr, nr = kernel.nr;
  const int64_t row_panels = ceil_div(g.m, mr), column_panels = ceil_div(g.n, nr);
  // Use smaller units if there would otherwise be too few for all threads.
  const int64_t wanted = 4 * num_threads();
  const int64_t unit_columns =
      std::clamp<int64_t>(row_panels * column_panels / wanted / kRowPanels, 1, kColumnPanels);
  const int64_t unit_rows =
      std::clamp<int64_t>(row_panels * column_panels / wanted / unit_columns, 1, kRowPanels);
  const int64_t row_units = ceil_div(row_panels, unit_rows);
  const int64_t column_units = ceil_div(column_panels, unit_columns);
  const int64_t deepest = std::min(kDepth, g.k);
  Scratch a = scratch({row_panels, deepest, mr, size}, kNoScratch);
  Scratch b = scratch({column_panels, deepest, nr, size}, kNoScratch);
  const bool parallel = product({g.m, g.n, g.k}) >= kParallelWork;
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
        const int64_t i0 = unit / column_units * unit_rows;
        const int64_t j0 = unit % column_units * unit_columns;
        for (int64_t j = j0; j < std::min(j0 + unit_columns, column_panels); ++j)
          for (int64_t i = i0; i < std::min(i0 + unit_rows, row_panels); ++i)
            kernel.tile(depth, a.get() + i * depth * mr * size, b.get() + j * depth * nr * size, nr,
                        g.c + (i * mr * g.ldc + j * nr) * size, g.ldc, p > 0,
                        static_cast<int>(std::min(mr, g.m - i * mr)),
                        static_cast<int>(std::min(nr, g.n - j * nr)));
      }
    });
  }
}

// Divides the longer side of C among threads; each BLAS call runs on one thread.
bool gemm_by_blas(const GemmArgs& g, bool single, int64_t size) {
  if (product({g.m, g.n, g.k}) < kParallelWork || num_threads() == 1) return blas_gemm(g, single);
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

void floating_gemm(const GemmArgs& g, DType t) {
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
  const bool few_rows = g.m <= kDirectPanels * kernel.mr, few_columns = g.n <= 2 * kernel.nr;
  if (g.b_col == 1 && (few_rows || (few_columns && g.a_col == 1)))
    return gemm_direct(g, kernel, size);
  if (g.b_col == 1 && g.a_row == 1 && g.k <= kShort) return gemm_outer(g, kernel, size);
  if (g.a_col == 1 && g.b_row == 1 && g.m <= kDotRows && g.k >= kDotDepth)
    return gemm_dots(g, kernel, size);
  gemm_packed(g, kernel, size);
}

template <class T, class U>
void integer_gemm(const GemmArgs& g) {
  const T *a = reinterpret_cast<const T*>(g.a), *b = reinterpret_cast<const T*>(g.b);
  U* c = reinterpret_cast<U*>(g.c);
  parallel_for(g.m, std::max<int64_t>(1, kGrain / work_of({g.n, g.k})),
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
  floating_gemm(g, t);
}

}  // namespace

bool multiplies(DType t) { return compute_type(t) == t; }

void gemm(const GemmArgs& g, DType t, const Loop<2>& loop, const View&, const View&, const View&) {
  if (loop.total == 1) return run(g, t);
  const int64_t size = itemsize(t), c_step = g.m * g.n;
  // Workers allocate scratch memory; a worker's failure is rethrown after the parallel part.
  std::atomic<bool> failed{false};
  int64_t grain = std::max<int64_t>(1, kParallelWork / 2 / work_of({g.m, g.n, g.k}));
  if (loop.total < num_threads()) grain = loop.total;  // few large matmuls: threads inside each
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
  if (failed) throw OutOfMemory(kNoScratch);
}

}  // namespace device
}  // namespace needle
