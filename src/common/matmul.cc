// Matmul: the matrices to multiply, and the layout of results.
#include "common/device.h"

namespace needle {
namespace nd {

namespace {

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
  same_device("matmul", a, {&b});
  DType t = promote(a.dtype(), b.dtype());
  if (t == DType::boolean)
    return cast(matmul(cast(a, DType::int64), cast(b, DType::int64)), DType::boolean);
  if (!device::multiplies(t))
    return cast(matmul(cast(a, compute_type(t)), cast(b, compute_type(t))), t);
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
  // The stride of an axis of extent 1 does not matter; 1 makes it count as contiguous.
  if (g.k == 1) g.a_col = g.b_row = 1;
  if (g.n == 1) g.b_col = 1;
  Dims shape = batch;
  shape.push(g.m);
  shape.push(g.n);
  View out = View::empty(t, shape, a.device());
  if (out.size() == 0) return out;
  g.a = a.data();
  g.b = b.data();
  g.c = out.data();

  // With one right-hand matrix for the batch, and evenly spaced rows in a, one matmul suffices.
  Loop<1> rows(leading_dims(a.shape(), 1), {leading_dims(a.strides(), 1)});
  if (checked_size(batch_b, 1) == 1 && rows.ndim == 1 && batch == batch_a) {
    g.m = rows.total;
    g.a_row = rows.inner(0);
    device::gemm(g, t, Loop<2>(Dims(), {Dims(), Dims()}), a, b, out);
    return out;
  }
  auto strides = [&](const View& v, int ndim) {
    Dims s;
    const int lead = batch.ndim - (ndim - 2);
    for (int i = 0; i < batch.ndim; ++i)
      s.push(i < lead || v.shape()[i - lead] == 1 ? 0 : v.strides()[i - lead]);
    return s;
  };
  device::gemm(g, t, Loop<2>(batch, {strides(a, da), strides(b, db)}), a, b, out);
  return out;
}

}  // namespace nd
}  // namespace needle
