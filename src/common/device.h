// The functions of a device. They are declared once here, and defined by src/cpu and by src/cuda in
// files of the same names; a module links one of the two. The functions of functions.h check
// operands and allocate results before they call these, so nothing is checked again: dtypes, shapes
// and strides fit, operands are on the same device, results share no memory with operands, and
// loops are not empty (unless stated otherwise).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/conv_plan.h"
#include "common/dlpack.h"
#include "common/functions.h"
#include "common/loop.h"

namespace needle {

// One element of any dtype.
union Element {
  float f32;
  double f64;
  int32_t i32;
  int64_t i64;
  int8_t i8;
  uint8_t u8;
  int16_t i16;
  uint16_t u16;  // also the bits of a half
};

// An operand of known dtype: a view, or one element, which a loop reads with stride 0.
struct Input {
  const View* view = nullptr;
  Element scalar{};

  const char* data() const {
    return view != nullptr ? view->data() : reinterpret_cast<const char*>(&scalar);
  }
};

// The axes of a reduction's operand: kept axes and reduction axes.
struct Split {
  Dims kept, kept_strides, reduced, reduced_strides, shape;
};

// Checked positions along an axis, in the order of an index. On the host they are non-negative; on
// the device they are an int64 view, where negative positions count from the end of `extent`.
struct Positions {
  std::vector<int64_t> host;
  std::optional<View> index;
  int64_t extent = 0;
};

// An array as a matrix whose rows run along the last axis; a copy unless the strides allow a view.
struct Matrix {
  View view;
  int64_t rows, columns, step;

  explicit Matrix(const View& x);
  const char* row(int64_t r) const { return view.data() + r * step * itemsize(view.dtype()); }

 private:
  bool fits();
};

// The operands of a strided matmul; C is row-major with leading dimension ldc.
struct GemmArgs {
  int64_t m, n, k;
  const char* a;
  int64_t a_row, a_col;  // strides in elements
  const char* b;
  int64_t b_row, b_col;
  char* c;
  int64_t ldc;
};

namespace device {

// The number of devices.
int count();
// Whether a copy to the host also waits for other work; other Python threads should then run.
bool waits();
// The host, as the device of buffers that wrap its memory.
int host_index();

// upload and download read and write a view of host memory with the same shape and dtype. When
// they return, the host memory may be changed or read.
void upload(const View& host, const View& to);
void download(const View& from, const View& host);

// to[...] = from[...], converted. If `ordered`, elements of `to` may share memory, and the last
// element wins.
void copy(const Loop<2>& loop, const View& from, const View& to, bool ordered);
void fill(const Loop<1>& loop, const Element& value, const View& to);
void fill_bytes(const View& to, int byte);  // the view has no gaps and may be empty

// Operands have dtype t; results have the dtype of `out`. Loops may be empty.
void unary(Unary op, const Loop<2>& loop, const View& x, const View& out);
void binary(Binary op, DType t, const Loop<3>& loop, const Input& a, const Input& b,
            const View& out);
void where(const Loop<4>& loop, const View& mask, const Input& a, const Input& b, const View& out);
// Returns the least integer of a view.
int64_t least(const View& x);

// Returns a result of shape s.shape, allocated by the device; result and operand may be empty.
View reduce(Reduction op, const View& x, const Split& s, DType out_type);
void arg_reduce(bool max, const View& x, const Split& s, const View& out);

// Whether casts between two dtypes, and ops of a dtype, run without a conversion to compute_type.
bool casts(DType from, DType to);
bool computes(DType t);
// Whether matmuls of a dtype run without a conversion to another dtype.
bool multiplies(DType t);
// out = a * b for each step of the batch; the pointers in `g` point into the views.
void gemm(const GemmArgs& g, DType t, const Loop<2>& batch, const View& a, const View& b,
          const View& out);

// out = softmax of the rows of x's last axis, or its logarithm; both views are compact. Returns
// false, and does nothing, if the device has no kernel for it.
bool softmax(const View& x, bool log, const View& out);

void conv2d(const Plan& p, const View& x, const View& weight, const View& out);
void conv2d_input(const Plan& p, const View& grad, const View& weight, const View& out);
// `out` is the whole weight; it is already zero if p does not cover all of its taps.
void conv2d_weight(const Plan& p, const View& x, const View& grad, bool whole, const View& out);

// Vectors and results are compact views.
void batch_norm(const Matrix& x, const View& weight, const View& bias, double eps,
                const Normalized& out);
void batch_norm_grad(const Matrix& grad, const Matrix& x, const View& weight, const View& mean,
                     const View& variance, double eps, const Normalized& out);
// All views are compact; gradients may be null.
void lstm_gates(const View& sums, const View& cell, const View& h, const View& c);
void lstm_gates_grad(const View& sums, const View& cell, const View& next, const View* grad_h,
                     const View* grad_c, const View& to_sums, const View& to_cell);
// sums = input + from_state, followed by the gates of lstm_gates.
void lstm_step(const View& input, const View& from_state, const View& cell, const View& sums,
               const View& h, const View& c);
// to_h += grad_h, to_c += grad_c; then computes the gradients of the step from both.
void lstm_step_grad(const View& sums, const View& cell, const View& next, const View* grad_h,
                    const View* grad_c, const View& to_h, const View& to_c, const View& to_sums,
                    const View& to_cell);

// Throws std::out_of_range, naming the position, for a position outside of [-extent, extent).
Positions positions(const View& index, int64_t extent, const char* what);
void gather(const View& x, const Positions& at, const View& index, int64_t axis, const View& out);
// `from` has the index's axes in place of `axis`; if a position repeats, the last one wins.
void scatter(const View& to, const Positions& at, const View& index, const View& from, int64_t axis,
             bool accumulate);

// Like gather and scatter, but every element has its own position; `to` is compact. They throw
// std::out_of_range; put_along throws after it has written.
void take_along(const View& x, const View& index, int64_t axis, const View& out);
void put_along(const View& to, const View& index, const View& from, int64_t axis, Put how);

// The views of these functions are compact.
void sgd_step(const View& param, const View& grad, const View* velocity, const SgdFactors& f);
void adam_step(const View& param, const View& grad, const View& m, const View& v,
               const AdamFactors& f);

// Returns the DLPack device of a buffer's memory.
dlpack::DeviceRef dlpack_device(const Buffer& buffer);
// Returns the index of a DLPack device; nullopt and the reason if it is not one of ours.
std::optional<int> device_of_dlpack(dlpack::DeviceRef ref, std::string* why);
// Makes a buffer over a producer's memory usable by the current stream from now on.
void take_over(const Buffer& buffer);
// A consumer begins, or ends, its work on the memory on its own stream (numbered as in DLPack).
// The consumer's work is ordered after all earlier work and before all later work.
void hand_over(const Buffer& buffer, int64_t stream);
void taken_back(const Buffer& buffer, int64_t stream) noexcept;

}  // namespace device
}  // namespace needle
