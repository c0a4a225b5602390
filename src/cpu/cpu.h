// The CPU device's functions over views: checks, allocation of results, loops and threads. Each
// throws (std::invalid_argument, TypeError, std::out_of_range, std::bad_alloc) before it writes.
#pragma once

#include <optional>

#include "common/ops.h"
#include "common/view.h"
#include "cpu/kernel_table.h"

namespace needle {

// A view or a Python scalar. Scalars are weak; `kind` is 0 bool, 1 integer, 2 floating.
struct Operand {
  const View* view = nullptr;
  int kind = 0;
  int64_t integer = 0;
  double real = 0;
  bool big = false;  // an integer outside of int64; `real` has its sign
};

namespace cpu {

// Elements per piece of parallel work in elementwise kernels.
constexpr int64_t kGrain = 16384;

void copy(const View& src, const View& dst);
void fill(const View& dst, const Operand& value);
View cast(const View& x, DType dtype);
View compact(const View& x);
View unary(Unary op, const View& x);
View binary(Binary op, const Operand& a, const Operand& b);
View where(const View& condition, const Operand& a, const Operand& b);
View reduce(Reduction op, const View& x, const Dims& axes, bool keepdims);
View arg_reduce(bool max, const View& x, int64_t axis, bool keepdims);
View matmul(const View& a, const View& b);
View gather(const View& x, const View& index, int64_t axis);
void scatter(const View& dst, const View& index, const View& src, int64_t axis, bool accumulate);
void sgd_step(const View& param, const View& grad, const View* velocity, const SgdFactors& f);
void adam_step(const View& param, const View& grad, const View& m, const View& v,
               const AdamFactors& f);

}  // namespace cpu
}  // namespace needle
