// Kernels that compute a layer in one pass, instead of one pass per op.
#pragma once

#include "common/functors.h"
#include "cpu/kernel_table.h"

namespace needle {
namespace NEEDLE_ISA {

// Sums over the rows of x (rows x n, `step` apart) are in double, like the sums of reduce.h.
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
  // Subtracting first avoids cancellation between large terms.
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

  struct Pair {
    double first = 0, second = 0;
  };

#ifdef __AVX__
  static constexpr int kBytes = 32;  // wider vectors lose time to loads that cross cache lines
#else
  static constexpr int kBytes = 16;
#endif
  static constexpr int kLanes = kBytes / sizeof(T), kVectors = 4;
  static constexpr int64_t kStep = kLanes * kVectors;
  static constexpr int64_t kRun = 8 * kStep;  // elements summed in T before the sum joins a double

  // Sums in these vectors stay in registers; sums in arrays would not.
  typedef T Vector __attribute__((vector_size(kBytes), aligned(sizeof(T)), may_alias));

  // The element, or the Vector, at p.
  template <class V>
  [[gnu::always_inline]] static inline const V& at(V*, const T* p) {
    return *reinterpret_cast<const V*>(p);
  }

  [[gnu::always_inline]] static inline double total(const Vector* lanes) {
    T wide[kLanes];
    *reinterpret_cast<Vector*>(wide) = (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
    for (int width = kLanes / 2; width > 0; width /= 2)
      for (int l = 0; l < width; ++l) wide[l] += wide[l + width];
    return wide[0];
  }

  // The sums of both terms, terms(i, &a, &b), over i in [0, n). A term is one element, or a Vector
  // that begins at element i.
  template <bool kBoth, class F>
  [[gnu::always_inline]] static inline Pair sums(int64_t n, F&& terms) {
    Pair sum;
    for (int64_t i = 0; i < n;) {
      const int64_t end = n - i < kRun ? n : i + kRun;
      Vector a[kVectors] = {}, b[kVectors] = {}, p, q;
      for (; i + kStep <= end; i += kStep)
        for (int v = 0; v < kVectors; ++v) {
          terms(i + v * kLanes, &p, &q);
          a[v] += p;
          if constexpr (kBoth) b[v] += q;
        }
      for (; i + kLanes <= end; i += kLanes) {
        terms(i, &p, &q);
        a[0] += p;
        if constexpr (kBoth) b[0] += q;
      }
      for (; i < end; ++i) {
        T one, other;
        terms(i, &one, &other);
        sum.first += one;
        if constexpr (kBoth) sum.second += other;
      }
      if (n >= kLanes) sum.first += total(a);
      if (kBoth && n >= kLanes) sum.second += total(b);
    }
    return sum;
  }

  // x' = ((x - mean) + less) * scale; `less` is the rounding error of the mean in T.
  struct Standard {
    T mean;
    double less, scale;

    // Makes one pass over memory. Each run of kRun elements is read twice while it is in cache, and
    // its sums are combined with those of earlier runs by the formula of Chan, Golub and LeVeque
    // ("Updating formulae", 1979), which does not suffer from cancellation.
    Standard(const T* x, int64_t n, double eps) {
      double middle = 0, squares = 0;
      for (int64_t i = 0; i < n; i += kRun, x += kRun) {
        const int64_t count = n - i < kRun ? n - i : kRun;
        const Pair plain =
            sums<false>(count, [=](int64_t k, auto* a, auto*) { *a = at(a, x + k); });
        const T centre = static_cast<T>(plain.first / static_cast<double>(count));
        const Pair about = sums<true>(count, [=](int64_t k, auto* a, auto* b) {
          *a = at(a, x + k) - centre;
          *b = *a * *a;
        });
        const double off = about.first / static_cast<double>(count), gap = centre + off - middle;
        const double share = static_cast<double>(count) / static_cast<double>(i + count);
        squares += about.second - about.first * off;
        if (i > 0) squares += gap * gap * share * static_cast<double>(i);
        middle += gap * share;
      }
      mean = static_cast<T>(middle);
      less = mean - middle;
      const double variance = squares / static_cast<double>(n);
      scale = 1 / __builtin_sqrt((variance < 0 ? 0 : variance) + eps);
    }
  };

  // A group of channels of `inner` elements each, normalised together; w and b are per channel.
  static void group_norm(const void* xv, const void* wv, const void* bv, int64_t channels,
                         int64_t inner, double eps, void* ov) {
    const T *x = static_cast<const T*>(xv), *w = static_cast<const T*>(wv);
    const T* b = static_cast<const T*>(bv);
    T* __restrict out = static_cast<T*>(ov);
    const Standard s(x, channels * inner, eps);
    const T m = s.mean, r = static_cast<T>(s.scale), shift = static_cast<T>(s.less * s.scale);
    if (inner == 1) {
      for (int64_t i = 0; i < channels; ++i) out[i] = ((x[i] - m) * r + shift) * w[i] + b[i];
      return;
    }
    for (int64_t c = 0; c < channels; ++c, x += inner, out += inner) {
      const T factor = w[c], offset = b[c];
      for (int64_t i = 0; i < inner; ++i) out[i] = ((x[i] - m) * r + shift) * factor + offset;
    }
  }

  // The gradient for x from the gradient g for group_norm's result; adds to to_w and to_b.
  static void group_norm_grad(const void* gv, const void* xv, const void* wv, int64_t channels,
                              int64_t inner, double eps, double* __restrict to_w,
                              double* __restrict to_b, void* ov) {
    const T *g = static_cast<const T*>(gv), *x = static_cast<const T*>(xv);
    const T* w = static_cast<const T*>(wv);
    T* __restrict out = static_cast<T*>(ov);
    const int64_t n = channels * inner;
    const Standard s(x, n, eps);
    const T m = s.mean, r = static_cast<T>(s.scale);
    Pair all;  // sums of w g, and of w g x'
    if (inner == 1) {
      const T shift = static_cast<T>(s.less * s.scale);
      for (int64_t i = 0; i < n; ++i) {
        to_b[i] += g[i];
        to_w[i] += g[i] * ((x[i] - m) * r + shift);
      }
      all = sums<true>(n, [=](int64_t i, auto* a, auto* b) {
        *a = at(a, w + i) * at(a, g + i);
        *b = *a * (at(a, x + i) - m);
      });
      all.second = (all.second + s.less * all.first) * s.scale;
    } else {
      for (int64_t c = 0; c < channels; ++c) {
        const T *gc = g + c * inner, *xc = x + c * inner;
        const Pair sum = sums<true>(inner, [=](int64_t i, auto* a, auto* b) {
          *a = at(a, gc + i);
          *b = *a * (at(a, xc + i) - m);
        });
        const double along = (sum.second + s.less * sum.first) * s.scale;
        to_b[c] += sum.first;
        to_w[c] += along;
        all.first += w[c] * sum.first;
        all.second += w[c] * along;
      }
    }
    // gx = r (w g - mean(w g) - x' mean(w g x')); subtracting first avoids cancellation between
    // large terms.
    const double along = all.second * s.scale / static_cast<double>(n);
    const T middle = static_cast<T>(all.first / static_cast<double>(n) + along * s.less);
    const T slope = static_cast<T>(along * s.scale);
    if (inner == 1) {
      for (int64_t i = 0; i < n; ++i) out[i] = (w[i] * g[i] - middle) * r - (x[i] - m) * slope;
      return;
    }
    for (int64_t c = 0; c < channels; ++c, g += inner, x += inner, out += inner) {
      const T factor = w[c];
      for (int64_t i = 0; i < inner; ++i)
        out[i] = (factor * g[i] - middle) * r - (x[i] - m) * slope;
    }
  }

  static constexpr int kBlock = 64;  // cells per block of gates

  // Applies one function to all elements: compilers vectorise such a loop, but not always a loop
  // that applies several functions.
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

  // The gradients for sums and c from the gradients for h' (gh) and c' (gc); null for none.
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
    return {column_sums,     column_squares, column_products, column_affine, group_norm,
            group_norm_grad, lstm,           lstm_grad};
  }
};

}  // namespace NEEDLE_ISA
}  // namespace needle
