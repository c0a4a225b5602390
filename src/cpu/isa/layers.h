// Kernels that compute a layer in one pass instead of one pass per op.
#pragma once

#include "common/functors.h"
#include "cpu/kernel_table.h"

namespace needle {
namespace NEEDLE_ISA {

// Sums over the rows of x (rows x n, `step` apart) are in double, like those of reduce.h.
template <class T>
struct Layers {
  static void column_sums(const void* xv, int64_t step, int64_t rows, double* __restrict sum,
                          int64_t n) {
    const T* x = static_cast<const T*>(xv);
    for (int64_t r = 0; r < rows; ++r, x += step)
      for (int64_t i = 0; i < n; ++i) sum[i] += x[i];
  }

  static void column_squares(const void* xv, int64_t step, int64_t rows, const double* mean,
                             double* __restrict sum, int64_t n) {
    const T* x = static_cast<const T*>(xv);
    for (int64_t r = 0; r < rows; ++r, x += step)
      for (int64_t i = 0; i < n; ++i) {
        const double d = x[i] - mean[i];
        sum[i] += d * d;
      }
  }

  // sums[0, n) += g, sums[n, 2n) += g * (x - mean)
  static void column_products(const void* gv, int64_t g_step, const void* xv, int64_t x_step,
                              int64_t rows, const double* mean, double* __restrict sums,
                              int64_t n) {
    const T *g = static_cast<const T*>(gv), *x = static_cast<const T*>(xv);
    double* __restrict products = sums + n;
    for (int64_t r = 0; r < rows; ++r, g += g_step, x += x_step)
      for (int64_t i = 0; i < n; ++i) {
        sums[i] += g[i];
        products[i] += g[i] * (x[i] - mean[i]);
      }
  }

  // out = a * (g - c) + b * (x - m), where a, b, c and m are rows; b * (x - m) + c if a is null.
  // Subtracting first leaves no rounding error of parts that cancel.
  static void column_affine(const void* gv, int64_t g_step, const void* av, const void* xv,
                            int64_t x_step, const void* mv, const void* bv, const void* cv,
                            int64_t rows, void* ov, int64_t n) {
    const T *g = static_cast<const T*>(gv), *x = static_cast<const T*>(xv);
    const T *a = static_cast<const T*>(av), *b = static_cast<const T*>(bv);
    const T *c = static_cast<const T*>(cv), *m = static_cast<const T*>(mv);
    T* __restrict out = static_cast<T*>(ov);
    for (int64_t r = 0; r < rows; ++r, x += x_step, out += n) {
      if (a == nullptr) {
        for (int64_t i = 0; i < n; ++i) out[i] = b[i] * (x[i] - m[i]) + c[i];
      } else {
        for (int64_t i = 0; i < n; ++i) out[i] = a[i] * (g[i] - c[i]) + b[i] * (x[i] - m[i]);
        g += g_step;
      }
    }
  }

  static constexpr int kBlock = 64;  // cells per block of gates

  // Compilers vectorise a loop over one function.
  template <class Op>
  static void map(const T* __restrict x, T* __restrict out, int64_t n) {
    for (int64_t i = 0; i < n; ++i) out[i] = Op::at(x[i]);
  }

  struct Gates {
    T i[kBlock], f[kBlock], g[kBlock], o[kBlock];

    Gates(const T* sums, int64_t stride, int64_t n) {
      map<fn::sigmoid>(sums, i, n);
      map<fn::sigmoid>(sums + stride, f, n);
      map<fn::tanh>(sums + 2 * stride, g, n);
      map<fn::sigmoid>(sums + 3 * stride, o, n);
    }
  };

  // sums (i, f, g, o side by side, n each) and c -> h', c'.
  static void lstm(const void* sv, const void* cv, void* hv, void* ov, int64_t n) {
    const T *s = static_cast<const T*>(sv), *c = static_cast<const T*>(cv);
    T* __restrict h = static_cast<T*>(hv), * __restrict out = static_cast<T*>(ov);
    for (int64_t k = 0; k < n; k += kBlock, s += kBlock, c += kBlock, h += kBlock, out += kBlock) {
      const int64_t count = n - k < kBlock ? n - k : kBlock;
      const Gates gates(s, n, count);
      T squashed[kBlock];
      for (int64_t i = 0; i < count; ++i) out[i] = gates.f[i] * c[i] + gates.i[i] * gates.g[i];
      map<fn::tanh>(out, squashed, count);
      for (int64_t i = 0; i < count; ++i) h[i] = gates.o[i] * squashed[i];
    }
  }

  // The gradients for sums and c from those for h' (gh) and c' (gc); null for none.
  static void lstm_grad(const void* sv, const void* cv, const void* ov, const void* ghv,
                        const void* gcv, void* gsv, void* gov, int64_t n) {
    const T *s = static_cast<const T*>(sv), *c = static_cast<const T*>(cv);
    const T *out = static_cast<const T*>(ov), *gh = static_cast<const T*>(ghv);
    const T* gc = static_cast<const T*>(gcv);
    T* __restrict gs = static_cast<T*>(gsv), * __restrict go = static_cast<T*>(gov);
    for (int64_t k = 0; k < n; k += kBlock) {
      const int64_t count = n - k < kBlock ? n - k : kBlock;
      const Gates y(s + k, n, count);
      T t[kBlock], of_h[kBlock], of_c[kBlock];
      map<fn::tanh>(out + k, t, count);
      for (int64_t i = 0; i < count; ++i) of_h[i] = gh == nullptr ? T(0) : gh[k + i];
      for (int64_t i = 0; i < count; ++i) of_c[i] = gc == nullptr ? T(0) : gc[k + i];
      for (int64_t i = 0; i < count; ++i) of_c[i] += of_h[i] * y.o[i] * (T(1) - t[i] * t[i]);
      for (int64_t i = 0; i < count; ++i) {
        gs[k + i] = of_c[i] * y.g[i] * y.i[i] * (T(1) - y.i[i]);
        gs[n + k + i] = of_c[i] * c[k + i] * y.f[i] * (T(1) - y.f[i]);
        gs[2 * n + k + i] = of_c[i] * y.i[i] * (T(1) - y.g[i] * y.g[i]);
        gs[3 * n + k + i] = of_h[i] * t[i] * y.o[i] * (T(1) - y.o[i]);
        go[k + i] = of_c[i] * y.f[i];
      }
    }
  }

  static LayerKernels kernels() {
    return {column_sums, column_squares, column_products, column_affine, lstm, lstm_grad};
  }
};

}  // namespace NEEDLE_ISA
}  // namespace needle
