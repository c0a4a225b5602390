// Inner kernels of matmul: a register tile of MR rows by NV vectors, written with the compiler's
// vector types so that one source serves every instruction set.
#pragma once

#include <stdint.h>

#include "common/scalar.h"
#include "cpu/kernel_table.h"

namespace needle {
namespace NEEDLE_ISA {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
constexpr int kTileRows = 8, kTileVectors = 2;  // 16 of 32 registers are accumulators
constexpr int kRowVectors = 16;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
constexpr int kTileRows = 6, kTileVectors = 2;  // 12 of 16 registers are accumulators
constexpr int kRowVectors = 8;
#else
constexpr int kVectorBytes = 16;
constexpr int kTileRows = 4, kTileVectors = 2;
constexpr int kRowVectors = 8;
#endif

static_assert(kTileRows <= kMaxTileRows, "drivers keep kMaxTileRows pointers");

template <class T>
struct Vector;
template <>
struct Vector<float> {
  typedef float type __attribute__((vector_size(kVectorBytes), aligned(4), may_alias));
};
template <>
struct Vector<double> {
  typedef double type __attribute__((vector_size(kVectorBytes), aligned(8), may_alias));
};

// Transposes W vectors of W elements by log2(W) perfect shuffles.
template <class T, int W>
struct Transpose {
  using V = typename Vector<T>::type;
  template <int N, int... I>
  struct Count : Count<N - 1, N - 1, I...> {};
  template <int... I>
  struct Count<0, I...> {
    static inline V low(V a, V b) {
      return __builtin_shufflevector(a, b, (I % 2 ? I / 2 + W : I / 2)...);
    }
    static inline V high(V a, V b) {
      return __builtin_shufflevector(a, b, (I % 2 ? I / 2 + W + W / 2 : I / 2 + W / 2)...);
    }
  };
  static inline __attribute__((always_inline)) void run(V (&r)[W]) {
#pragma GCC unroll 4
    for (int stage = 1; stage < W; stage *= 2) {
      V next[W];
#pragma GCC unroll 16
      for (int i = 0; i < W / 2; ++i) {
        next[2 * i] = Count<W>::low(r[i], r[i + W / 2]);
        next[2 * i + 1] = Count<W>::high(r[i], r[i + W / 2]);
      }
#pragma GCC unroll 16
      for (int i = 0; i < W; ++i) r[i] = next[i];
    }
  }
};

// Accumulators of a tile of C: ROWS rows by VECS vectors.
template <class T, int ROWS, int VECS>
struct Tile {
  using V = typename Vector<T>::type;
  static constexpr int W = kVectorBytes / sizeof(T);
  V acc[ROWS][VECS];

  inline __attribute__((always_inline)) Tile(const T* c, int64_t ldc) {
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < VECS; ++j) acc[i][j] = V{};
    // Prefetch the tile of C, which is needed last.
    for (int i = 0; i < ROWS; ++i)
      for (int j = 0; j < VECS; ++j) __builtin_prefetch(c + i * ldc + j * W, 1);
  }

  // acc[i][j] += a(i) * b[j]
  template <class A>
  inline __attribute__((always_inline)) void step(A a, const T* b) {
    V bv[VECS];
#pragma GCC unroll 4
    for (int j = 0; j < VECS; ++j) bv[j] = *reinterpret_cast<const V*>(b + j * W);
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < VECS; ++j) acc[i][j] += a(i) * bv[j];
  }

  inline __attribute__((always_inline)) void store(T* c, int64_t ldc, bool accumulate, int cols) {
    if (cols == VECS * W) {
#pragma GCC unroll 16
      for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < VECS; ++j) {
          V* out = reinterpret_cast<V*>(c + i * ldc + j * W);
          *out = accumulate ? *out + acc[i][j] : acc[i][j];
        }
      return;
    }
    for (int i = 0; i < ROWS; ++i) {
      T row[VECS * W];
      for (int j = 0; j < VECS; ++j) __builtin_memcpy(row + j * W, &acc[i][j], sizeof(V));
      for (int j = 0; j < cols; ++j) c[i * ldc + j] = accumulate ? c[i * ldc + j] + row[j] : row[j];
    }
  }
};

#define NEEDLE_INLINE __attribute__((always_inline))

// Walks are the ways in which a tile iterates over the reduction axis; each has run(tile).
// In this walk, both operands advance with k.
template <class T>
struct PackedWalk {
  int64_t k;
  const T *a, *b;
  int64_t a_step, ldb;
  template <class Acc>
  inline NEEDLE_INLINE void run(Acc& tile) const {
    const T *pa = a, *pb = b;
#pragma GCC unroll 4
    for (int64_t p = 0; p < k; ++p) {
      tile.step([pa](int i) NEEDLE_INLINE { return pa[i]; }, pb);
      pa += a_step;
      pb += ldb;
    }
  }
};

// A's rows lie anywhere in memory; each is read in runs.
template <class T, int MR>
struct RowsWalk {
  int64_t taps;
  const int64_t *a_taps, *b_taps;
  int64_t length;
  const void* const* rows;
  const T* b;
  int64_t ldb;
  template <class Acc>
  inline NEEDLE_INLINE void run(Acc& tile) const {
    constexpr int kRows = sizeof(tile.acc) / sizeof(tile.acc[0]);
    for (int64_t t = 0; t < taps; ++t) {
      const T* at[kRows];
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) at[i] = static_cast<const T*>(rows[i]) + a_taps[t];
      const T* pb = b + b_taps[t] * ldb;
#pragma GCC unroll 4
      for (int64_t p = 0; p < length; ++p) {
        tile.step([&](int i) NEEDLE_INLINE { return at[i][p]; }, pb);
        pb += ldb;
      }
    }
  }
};

// A's columns lie anywhere in memory.
template <class T>
struct ColumnsWalk {
  int64_t k;
  const T* a;
  const int64_t* offsets;
  const T* b;
  int64_t ldb;
  template <class Acc>
  inline NEEDLE_INLINE void run(Acc& tile) const {
    const T* pb = b;
#pragma GCC unroll 4
    for (int64_t p = 0; p < k; ++p) {
      const T* pa = a + offsets[p];
      tile.step([pa](int i) NEEDLE_INLINE { return pa[i]; }, pb);
      pb += ldb;
    }
  }
};

template <class T>
struct Gemm {
  using V = typename Vector<T>::type;
  static constexpr int MR = kTileRows, NV = kTileVectors;
  static constexpr int W = kVectorBytes / sizeof(T), NR = NV * W;

  // Use half a tile if the columns fit into it.
  template <int ROWS, class Walk>
  static inline NEEDLE_INLINE void fixed(const Walk& walk, T* c, int64_t ldc, bool accumulate,
                                         int cols) {
    if (cols <= NR / 2) {
      Tile<T, ROWS, NV / 2> tile(c, ldc);
      walk.run(tile);
      tile.store(c, ldc, accumulate, cols);
    } else {
      Tile<T, ROWS, NV> tile(c, ldc);
      walk.run(tile);
      tile.store(c, ldc, accumulate, cols);
    }
  }

  template <int ROWS, class Walk>
  static void dispatch(const Walk& walk, void* c, int64_t ldc, bool accumulate, int rows,
                       int cols) {
    if (rows == ROWS) {
      fixed<ROWS>(walk, static_cast<T*>(c), ldc, accumulate, cols);
    } else if constexpr (ROWS > 1) {
      dispatch<ROWS - 1>(walk, c, ldc, accumulate, rows, cols);
    }
  }

  static void tile(int64_t k, const void* a, const void* b, int64_t ldb, void* c, int64_t ldc,
                   bool accumulate, int rows, int cols) {
    const PackedWalk<T> walk{k, static_cast<const T*>(a), static_cast<const T*>(b), MR, ldb};
    dispatch<MR>(walk, c, ldc, accumulate, rows, cols);
  }

  static void tile_rows(int64_t taps, const int64_t* a_taps, const int64_t* b_taps, int64_t length,
                        const void* const* rows_at, const void* b, int64_t ldb, void* c,
                        int64_t ldc, bool accumulate, int rows, int cols) {
    const RowsWalk<T, MR> walk{taps, a_taps, b_taps, length, rows_at, static_cast<const T*>(b),
                               ldb};
    dispatch<MR>(walk, c, ldc, accumulate, rows, cols);
  }

  static void tile_columns(int64_t k, const void* a, const int64_t* offsets, const void* b,
                           int64_t ldb, void* c, int64_t ldc, bool accumulate, int rows, int cols) {
    const ColumnsWalk<T> walk{k, static_cast<const T*>(a), offsets, static_cast<const T*>(b), ldb};
    dispatch<MR>(walk, c, ldc, accumulate, rows, cols);
  }

  // Both operands are contiguous along k: vectors run along k, and each accumulator is summed at
  // the end. c[i][j] = sum over p of a[i][p] * b[j][p].
  template <int ROWS, int COLS>
  static inline NEEDLE_INLINE void dots(int64_t k, const T* a, int64_t lda, const T* b, int64_t ldb,
                                        T* c, int64_t ldc) {
    V acc[ROWS][COLS];
#pragma GCC unroll 4
    for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < COLS; ++j) acc[i][j] = V{};
    int64_t p = 0;
    for (; p + W <= k; p += W) {
      V bv[COLS];
#pragma GCC unroll 4
      for (int j = 0; j < COLS; ++j) bv[j] = *reinterpret_cast<const V*>(b + j * ldb + p);
#pragma GCC unroll 4
      for (int i = 0; i < ROWS; ++i) {
        const V av = *reinterpret_cast<const V*>(a + i * lda + p);
#pragma GCC unroll 4
        for (int j = 0; j < COLS; ++j) acc[i][j] += av * bv[j];
      }
    }
    for (int i = 0; i < ROWS; ++i)
      for (int j = 0; j < COLS; ++j) {
        T part[W];
        __builtin_memcpy(part, &acc[i][j], sizeof(V));
        for (int width = W / 2; width > 0; width /= 2)
          for (int l = 0; l < width; ++l) part[l] += part[l + width];
        T sum = part[0];
        for (int64_t q = p; q < k; ++q) sum += a[i * lda + q] * b[j * ldb + q];
        c[i * ldc + j] = sum;
      }
  }

  static void dot_tile(int64_t k, const void* av, int64_t lda, const void* bv, int64_t ldb,
                       void* cv, int64_t ldc, int rows, int cols) {
    const T *a = static_cast<const T*>(av), *b = static_cast<const T*>(bv);
    T* c = static_cast<T*>(cv);
    if (rows == kDotTile && cols == kDotTile)
      return dots<kDotTile, kDotTile>(k, a, lda, b, ldb, c, ldc);
    for (int i = 0; i < rows; ++i)
      for (int j = 0; j < cols; ++j)
        dots<1, 1>(k, a + i * lda, lda, b + j * ldb, ldb, c + i * ldc + j, ldc);
  }

  static void pack_a(const void* av, int64_t row_stride, int64_t k_stride, int rows, int64_t k,
                     void* packed) {
    const T* a = static_cast<const T*>(av);
    T* __restrict out = static_cast<T*>(packed);
    if (rows == MR) {
      for (int64_t p = 0; p < k; ++p)
        for (int i = 0; i < MR; ++i) out[p * MR + i] = a[i * row_stride + p * k_stride];
      return;
    }
    for (int64_t p = 0; p < k; ++p)
      for (int i = 0; i < MR; ++i)
        out[p * MR + i] = i < rows ? a[i * row_stride + p * k_stride] : T(0);
  }

  static void pack_b(const void* bv, int64_t k_stride, int64_t col_stride, int64_t k, int cols,
                     void* packed) {
    const T* b = static_cast<const T*>(bv);
    T* __restrict out = static_cast<T*>(packed);
    if (cols == NR && col_stride == 1) {
      for (int64_t p = 0; p < k; ++p)
        for (int j = 0; j < NR; ++j) out[p * NR + j] = b[p * k_stride + j];
      return;
    }
    if (k_stride == 1 && cols == NR) {
      // A transposed operand: square blocks are transposed in registers.
      int64_t p = 0;
      for (; p + W <= k; p += W)
        for (int v = 0; v < NV; ++v) {
          V block[W];
#pragma GCC unroll 16
          for (int j = 0; j < W; ++j)
            block[j] = *reinterpret_cast<const V*>(b + (v * W + j) * col_stride + p);
          Transpose<T, W>::run(block);
#pragma GCC unroll 16
          for (int j = 0; j < W; ++j) *reinterpret_cast<V*>(out + (p + j) * NR + v * W) = block[j];
        }
      for (; p < k; ++p)
        for (int j = 0; j < NR; ++j) out[p * NR + j] = b[p + j * col_stride];
      return;
    }
    for (int64_t p = 0; p < k; ++p)
      for (int j = 0; j < NR; ++j)
        out[p * NR + j] = j < cols ? b[p * k_stride + j * col_stride] : T(0);
  }

  // One row: c[0, cols) = sum over p of a[p] * b[p]. B is read once, so its rows should be read in
  // long runs; wide blocks also hide latency behind many accumulators.
  template <int VECTORS>
  static inline __attribute__((always_inline)) int64_t row_blocks(int64_t from, int64_t cols,
                                                                  int64_t k, const T* a,
                                                                  int64_t a_step, const T* b,
                                                                  int64_t ldb, T* c) {
    for (; from + VECTORS * W <= cols; from += VECTORS * W) {
      V acc[VECTORS];
#pragma GCC unroll 16
      for (int v = 0; v < VECTORS; ++v) acc[v] = V{};
      for (int64_t p = 0; p < k; ++p) {
        const T* in = b + p * ldb + from;
#pragma GCC unroll 16
        for (int v = 0; v < VECTORS; ++v)
          acc[v] += a[p * a_step] * *reinterpret_cast<const V*>(in + v * W);
      }
#pragma GCC unroll 16
      for (int v = 0; v < VECTORS; ++v) *reinterpret_cast<V*>(c + from + v * W) = acc[v];
    }
    return from;
  }

  static void row(int64_t k, const void* av, int64_t a_step, const void* bv, int64_t ldb, void* cv,
                  int64_t cols) {
    const T *a = static_cast<const T*>(av), *b = static_cast<const T*>(bv);
    T* c = static_cast<T*>(cv);
    int64_t from = row_blocks<kRowVectors>(0, cols, k, a, a_step, b, ldb, c);
    from = row_blocks<kRowVectors / 4>(from, cols, k, a, a_step, b, ldb, c);
    from = row_blocks<1>(from, cols, k, a, a_step, b, ldb, c);
    for (; from < cols; ++from) {
      T sum = 0;
      for (int64_t p = 0; p < k; ++p) sum += a[p * a_step] * b[p * ldb + from];
      c[from] = sum;
    }
  }

  static GemmKernels kernels() {
    return {MR, NR, tile, tile_rows, tile_columns, dot_tile, pack_a, pack_b, row};
  }
};

}  // namespace NEEDLE_ISA
}  // namespace needle
