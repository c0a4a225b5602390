// Fills the kernel table. Compiled once per instruction set; NEEDLE_ISA names the namespace.
#include "cpu/isa/elementwise.h"
#include "cpu/isa/gemm.h"
#include "cpu/isa/layers.h"
#include "cpu/isa/narrow.h"
#include "cpu/isa/philox.h"
#include "cpu/isa/reduce.h"

namespace needle {
namespace NEEDLE_ISA {

constexpr int kF32 = static_cast<int>(DType::float32), kF64 = static_cast<int>(DType::float64);
constexpr int kI32 = static_cast<int>(DType::int32), kI64 = static_cast<int>(DType::int64);
constexpr int kBool = static_cast<int>(DType::boolean);
constexpr int kF16 = static_cast<int>(DType::float16), kBf16 = static_cast<int>(DType::bfloat16);
constexpr int kI8 = static_cast<int>(DType::int8), kU8 = static_cast<int>(DType::uint8);
constexpr int kI16 = static_cast<int>(DType::int16), kU16 = static_cast<int>(DType::uint16);

constexpr int64_t kItemsize[kDTypes] = {
#define NEEDLE_ROW(name, type, kind, code, bits) sizeof(type),
    NEEDLE_DTYPES(NEEDLE_ROW)
#undef NEEDLE_ROW
};

// The compute type of a dtype with fewer bits.
template <class S>
constexpr int kWide = IsHalf<S>::value ? kF32 : kI32;

// The table being filled; rows of narrow dtypes call rows of their compute type through it.
static const KernelTable* g_own = nullptr;

// Calls F::fill<S>(table, dtype index) for each dtype with its storage type.
template <class F>
static void each_floating(KernelTable* t) {
  F::template fill<float>(t, kF32);
  F::template fill<double>(t, kF64);
}
template <class F>
static void each_integer(KernelTable* t) {
  F::template fill<int32_t>(t, kI32);
  F::template fill<int64_t>(t, kI64);
}
template <class F>
static void each(KernelTable* t) {
  each_floating<F>(t);
  each_integer<F>(t);
  F::template fill<Bool>(t, kBool);
}
// Calls F::fill_narrow<S>(table, dtype index) for float16 and bfloat16.
template <class F>
static void each_half(KernelTable* t) {
  F::template fill_narrow<Float16>(t, kF16);
  F::template fill_narrow<Bfloat16>(t, kBf16);
}
// The same for small integers.
template <class F>
static void each_small(KernelTable* t) {
  F::template fill_narrow<int8_t>(t, kI8);
  F::template fill_narrow<uint8_t>(t, kU8);
  F::template fill_narrow<int16_t>(t, kI16);
  F::template fill_narrow<uint16_t>(t, kU16);
}
template <class F>
static void each_narrow(KernelTable* t) {
  each_half<F>(t);
  each_small<F>(t);
}
// Calls F::fill or F::fill_narrow for each dtype that an op of the category has a kernel for.
template <class F, Category kCategory>
static void each_of(KernelTable* t) {
  if constexpr (takes_floats(kCategory)) {
    each_half<F>(t);
    each_floating<F>(t);
  }
  if constexpr (takes_integers(kCategory)) {
    each_small<F>(t);
    each_integer<F>(t);
  }
  if constexpr (takes_bools(kCategory)) F::template fill<Bool>(t, kBool);
}

template <class Op, int kOp, Category kCategory>
struct FillUnary {
  template <class S>
  static void fill(KernelTable* t, int d) {
    if constexpr (kCategory == Category::PREDICATE)
      t->unary[kOp][d] = unary_row<Op, S, Bool>;
    else
      t->unary[kOp][d] = unary_row<Op, S, S>;
  }
  template <class S>
  static void fill_narrow(KernelTable* t, int d) {
    t->unary[kOp][d] = [](const void* x, int64_t sx, void* o, int64_t n) {
      constexpr bool kBoolResult = kCategory == Category::PREDICATE;
      NarrowRows<S, kBoolResult>::unary(g_own->unary[kOp][kWide<S>], x, sx, o, n);
    };
  }
  static void rows(KernelTable* t) { each_of<FillUnary, kCategory>(t); }
};

template <class Op, int kOp, Category kCategory>
struct FillBinary {
  template <class S>
  static void fill(KernelTable* t, int d) {
    if constexpr (kOp == static_cast<int>(Binary::power))
      t->binary[kOp][d] = power_row<S>;
    else if constexpr (kCategory == Category::PREDICATE || kCategory == Category::LOGICAL)
      t->binary[kOp][d] = binary_row<Op, S, Bool>;
    else
      t->binary[kOp][d] = binary_row<Op, S, S>;
  }
  template <class S>
  static void fill_narrow(KernelTable* t, int d) {
    t->binary[kOp][d] = [](const void* a, int64_t sa, const void* b, int64_t sb, void* o,
                           int64_t n) {
      constexpr bool kBoolResult =
          kCategory == Category::PREDICATE || kCategory == Category::LOGICAL;
      NarrowRows<S, kBoolResult>::binary(g_own->binary[kOp][kWide<S>], a, sa, b, sb, o, n);
    };
  }
  static void rows(KernelTable* t) { each_of<FillBinary, kCategory>(t); }
};

template <class From, int kFrom>
struct FillCast {
  template <class To>
  static void fill(KernelTable* t, int d) {
    t->cast[kFrom][d] = cast_row<From, To>;
  }
  template <class To>
  static void fill_narrow(KernelTable* t, int d) {
    fill<To>(t, d);
  }
};

template <Reduction kReduction>
struct FillNarrowReduction {
  static constexpr int kOp = static_cast<int>(kReduction);
  static constexpr bool kSelects = kReduction == Reduction::max || kReduction == Reduction::min;
  template <class S>
  static void fill_narrow(KernelTable* t, int d) {
    t->reduce_row[kOp][d] = [](const void* x, int64_t sx, void* acc, int64_t n) {
      narrow_reduce_row<S, kSelects>(g_own->reduce_row[kOp][kWide<S>], x, sx, acc, n);
    };
    t->reduce_columns[kOp][d] = [](const void* x, int64_t sx, void* acc, int64_t n) {
      narrow_reduce_columns<S, kSelects>(g_own->reduce_columns[kOp][kWide<S>], x, sx, acc, n);
    };
  }
};

struct FillRest {
  template <class S>
  static void fill(KernelTable* t, int d) {
    constexpr int kSum = static_cast<int>(Reduction::sum),
                  kProd = static_cast<int>(Reduction::prod);
    constexpr int kMax = static_cast<int>(Reduction::max), kMin = static_cast<int>(Reduction::min);
    t->reduce_row[kSum][d] = sum_row<S>;
    t->reduce_row[kProd][d] = prod_row<S>;
    t->reduce_row[kMax][d] = select_row<fn::maximum, S>;
    t->reduce_row[kMin][d] = select_row<fn::minimum, S>;
    t->reduce_columns[kSum][d] = wide_columns<fn::add, S>;
    t->reduce_columns[kProd][d] = wide_columns<fn::multiply, S>;
    t->reduce_columns[kMax][d] = select_columns<fn::maximum, S>;
    t->reduce_columns[kMin][d] = select_columns<fn::minimum, S>;
    t->add_to[d] = add_to_row<S>;
    fill_any<S>(t, d);
  }
  template <class S>
  static void fill_narrow(KernelTable* t, int d) {
    t->sgd[d] = [](void* p, const void* g, void* v, int64_t n, const SgdFactors& f) {
      half_sgd_row<S>(g_own->sgd[kF32], p, g, v, n, f);
    };
    t->adam[d] = [](void* p, const void* g, void* m, void* v, int64_t n, const AdamFactors& f) {
      half_adam_row<S>(g_own->adam[kF32], p, g, m, v, n, f);
    };
    fill_any<S>(t, d);
    t->cast[d][d] = cast_row<uint16_t, uint16_t>;  // copies bits
  }

 private:
  template <class S>
  static void fill_any(KernelTable* t, int d) {
    t->where[d] = where_row<S>;
    t->argmax[d] = arg_row<S, true>;
    t->argmin[d] = arg_row<S, false>;
    if (d == kF32) casts<S, kF32>(t);
    if (d == kF64) casts<S, kF64>(t);
    if (d == kI32) casts<S, kI32>(t);
    if (d == kI64) casts<S, kI64>(t);
    if (d == kBool) casts<S, kBool>(t);
    if (d == kF16) casts<S, kF16>(t);
    if (d == kBf16) casts<S, kBf16>(t);
  }
  template <class S, int kFrom>
  static void casts(KernelTable* t) {
    each<FillCast<S, kFrom>>(t);
    each_half<FillCast<S, kFrom>>(t);
  }
};

// Casts go through int32; other kernels work on the stored elements.
struct FillSmall {
  template <class S>
  static void fill_narrow(KernelTable* t, int d) {
    t->where[d] = where_row<S>;
    t->argmax[d] = arg_row<S, true>;
    t->argmin[d] = arg_row<S, false>;
    casts<S, 0>(t, d);
    t->cast[d][d] = cast_row<S, S>;
    t->cast[d][kI32] = cast_row<S, int32_t>;
    t->cast[kI32][d] = cast_row<int32_t, S>;
  }

 private:
  template <class S, int kOther>
  static void casts(KernelTable* t, int d) {
    t->cast[d][kOther] = [](const void* x, int64_t sx, void* y, int64_t sy, int64_t n) {
      cast_from_small<S>(g_own->cast[kI32][kOther], kItemsize[kOther], x, sx, y, sy, n);
    };
    if constexpr (kOther < kI8)
      t->cast[kOther][d] = [](const void* x, int64_t sx, void* y, int64_t sy, int64_t n) {
        cast_to_small<S>(g_own->cast[kOther][kI32], kItemsize[kOther], x, sx, y, sy, n);
      };
    if constexpr (kOther + 1 < kDTypes) casts<S, kOther + 1>(t, d);
  }
};

struct FillFloating {
  template <class S>
  static void fill(KernelTable* t, int d) {
    t->sgd[d] = sgd_row<S>;
    t->adam[d] = adam_row<S>;
    t->gemm[d] = Gemm<S>::kernels();
    t->layers[d] = Layers<S>::kernels();
  }
};

#define NEEDLE_NAME2(x) #x
#define NEEDLE_NAME(x) NEEDLE_NAME2(x)

void fill_table(KernelTable* t) {
  t->isa = NEEDLE_NAME(NEEDLE_ISA);
  g_own = t;
  t->philox = philox;
#define NEEDLE_UNARY(name, category) \
  FillUnary<fn::name, static_cast<int>(Unary::name), Category::category>::rows(t);
#define NEEDLE_BINARY(name, category) \
  FillBinary<fn::name, static_cast<int>(Binary::name), Category::category>::rows(t);
#include "common/ops.inc"
#undef NEEDLE_UNARY
#undef NEEDLE_BINARY
  each<FillRest>(t);
  each_half<FillRest>(t);
  each_small<FillSmall>(t);
  each_narrow<FillNarrowReduction<Reduction::sum>>(t);
  each_narrow<FillNarrowReduction<Reduction::prod>>(t);
  each_narrow<FillNarrowReduction<Reduction::max>>(t);
  each_narrow<FillNarrowReduction<Reduction::min>>(t);
  each_floating<FillFloating>(t);
}

}  // namespace NEEDLE_ISA
}  // namespace needle
