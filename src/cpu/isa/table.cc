// Compiled once per instruction set, with NEEDLE_ISA naming the namespace: fills the kernel table.
#include "cpu/isa/elementwise.h"
#include "cpu/isa/gemm.h"
#include "cpu/isa/reduce.h"

namespace needle {
namespace NEEDLE_ISA {

constexpr int kF32 = static_cast<int>(DType::float32), kF64 = static_cast<int>(DType::float64);
constexpr int kI32 = static_cast<int>(DType::int32), kI64 = static_cast<int>(DType::int64);
constexpr int kBool = static_cast<int>(DType::boolean);

// F::fill<S>(table, dtype index) for each dtype with its storage type.
template <class F>
static void each_floating(KernelTable* t) {
  F::template fill<float>(t, kF32);
  F::template fill<double>(t, kF64);
}
template <class F>
static void each_number(KernelTable* t) {
  each_floating<F>(t);
  F::template fill<int32_t>(t, kI32);
  F::template fill<int64_t>(t, kI64);
}
template <class F>
static void each(KernelTable* t) {
  each_number<F>(t);
  F::template fill<Bool>(t, kBool);
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
  static void rows(KernelTable* t) {
    if constexpr (kCategory == Category::FLOAT)
      each_floating<FillUnary>(t);
    else if constexpr (kCategory == Category::NUMBER)
      each_number<FillUnary>(t);
    else
      each<FillUnary>(t);
  }
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
  static void rows(KernelTable* t) {
    if constexpr (kCategory == Category::TRUE_DIVIDE)
      each_floating<FillBinary>(t);
    else if constexpr (kCategory == Category::NUMBER)
      each_number<FillBinary>(t);
    else
      each<FillBinary>(t);
  }
};

template <class From, int kFrom>
struct FillCast {
  template <class To>
  static void fill(KernelTable* t, int d) {
    t->cast[kFrom][d] = cast_row<From, To>;
  }
};

struct FillRest {
  template <class S>
  static void fill(KernelTable* t, int d) {
    constexpr int kSum = static_cast<int>(Reduction::sum),
                  kProd = static_cast<int>(Reduction::prod);
    constexpr int kMax = static_cast<int>(Reduction::max), kMin = static_cast<int>(Reduction::min);
    t->where[d] = where_row<S>;
    t->reduce_row[kSum][d] = sum_row<S>;
    t->reduce_row[kProd][d] = prod_row<S>;
    t->reduce_row[kMax][d] = select_row<fn::maximum, S>;
    t->reduce_row[kMin][d] = select_row<fn::minimum, S>;
    t->reduce_columns[kSum][d] = wide_columns<fn::add, S>;
    t->reduce_columns[kProd][d] = wide_columns<fn::multiply, S>;
    t->reduce_columns[kMax][d] = select_columns<fn::maximum, S>;
    t->reduce_columns[kMin][d] = select_columns<fn::minimum, S>;
    t->argmax[d] = arg_row<S, true>;
    t->argmin[d] = arg_row<S, false>;
    t->add_to[d] = add_to_row<S>;
    FillCastFrom<S>::rows(t, d);
  }
  template <class S>
  struct FillCastFrom {
    static void rows(KernelTable* t, int d) {
      if (d == kF32) each<FillCast<S, kF32>>(t);
      if (d == kF64) each<FillCast<S, kF64>>(t);
      if (d == kI32) each<FillCast<S, kI32>>(t);
      if (d == kI64) each<FillCast<S, kI64>>(t);
      if (d == kBool) each<FillCast<S, kBool>>(t);
    }
  };
};

struct FillFloating {
  template <class S>
  static void fill(KernelTable* t, int d) {
    t->sgd[d] = sgd_row<S>;
    t->adam[d] = adam_row<S>;
    t->gemm[d] = Gemm<S>::kernels();
  }
};

#define NEEDLE_NAME2(x) #x
#define NEEDLE_NAME(x) NEEDLE_NAME2(x)

void fill_table(KernelTable* t) {
  t->isa = NEEDLE_NAME(NEEDLE_ISA);
#define NEEDLE_UNARY(name, category) \
  FillUnary<fn::name, static_cast<int>(Unary::name), Category::category>::rows(t);
#define NEEDLE_BINARY(name, category) \
  FillBinary<fn::name, static_cast<int>(Binary::name), Category::category>::rows(t);
#include "common/ops.inc"
#undef NEEDLE_UNARY
#undef NEEDLE_BINARY
  each<FillRest>(t);
  each_floating<FillFloating>(t);
}

}  // namespace NEEDLE_ISA
}  // namespace needle
