// Matmuls with cuBLAS, for the libraries of artifacts that use it. TVM's virtual machine finds
// `needle_cublas_gemm` in such a library without registration. cuBLAS itself is loaded at the first
// matmul. Its binary interface is declared here, so that compiling an artifact does not need
// cuBLAS; the interface is the same from version 12 on (docs.nvidia.com/cuda/cublas).
#include <dlfcn.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

#include <climits>
#include <map>
#include <mutex>
#include <string>

namespace {

namespace ffi = tvm::ffi;
using ffi::TensorView;

using Handle = void*;
using Stream = void*;
constexpr int kPlain = 0, kTransposed = 1;                               // cublasOperation_t
constexpr int kFloat32 = 0, kFloat64 = 1, kFloat16 = 2, kBfloat16 = 14;  // cudaDataType
constexpr int kCompute32 = 68, kCompute32Tf32 = 77, kCompute64 = 70;     // cublasComputeType_t
constexpr int kDefaultAlgorithm = -1;                                    // cublasGemmAlgo_t
constexpr int kDefaultMath = 0, kNoReducedReduction = 16;                // cublasMath_t

constexpr const char* kNames[] = {"libcublas.so.13", "libcublas.so.12"};

class Library {
 public:
  Library() {
    for (const char* name : kNames) {
      library_ = dlopen(name, RTLD_NOW | RTLD_LOCAL);
      if (library_ != nullptr) break;
    }
    if (library_ == nullptr)
      TVM_FFI_THROW(RuntimeError) << "a matrix product needs cuBLAS, but neither " << kNames[0]
                                  << " nor " << kNames[1] << " was found";
    find("cublasCreate_v2", &create);
    find("cublasSetStream_v2", &set_stream);
    find("cublasSetWorkspace_v2", &set_workspace);
    find("cublasSetMathMode", &set_math_mode);
    find("cublasGetStatusString", &explain);
    find("cublasGemmEx", &gemm);
    find("cublasGemmStridedBatchedEx", &gemm_batched);
  }

  int (*create)(Handle*) = nullptr;
  int (*set_stream)(Handle, Stream) = nullptr;
  int (*set_workspace)(Handle, void*, size_t) = nullptr;
  int (*set_math_mode)(Handle, int) = nullptr;
  const char* (*explain)(int) = nullptr;
  int (*gemm)(Handle, int, int, int, int, int, const void*, const void*, int, int, const void*, int,
              int, const void*, void*, int, int, int, int) = nullptr;
  int (*gemm_batched)(Handle, int, int, int, int, int, const void*, const void*, int, int,
                      long long, const void*, int, int, long long, const void*, void*, int, int,
                      long long, int, int, int) = nullptr;

  void check(int status, const char* doing) const {
    if (status != 0) TVM_FFI_THROW(RuntimeError) << "cuBLAS: " << doing << ": " << explain(status);
  }

 private:
  template <class F>
  void find(const char* name, F* function) {
    *function = reinterpret_cast<F>(dlsym(library_, name));
    if (*function == nullptr) TVM_FFI_THROW(RuntimeError) << "cuBLAS has no " << name;
  }
  void* library_ = nullptr;
};

const Library& library() {
  static const auto* the = new Library;
  return *the;
}

// There is one handle for each GPU, created at its first use. The first use comes before a graph is
// captured, since the runtime first runs everything once without a graph. Handles are never
// destroyed: at the exit of the process, the driver may already be gone.
Handle handle_of(int device) {
  static auto* handles = new std::map<int, Handle>;
  Handle& handle = (*handles)[device];
  if (handle == nullptr) {
    Handle made = nullptr;
    library().check(library().create(&made), "starting");
    library().check(library().set_math_mode(made, kDefaultMath | kNoReducedReduction),
                    "setting the precision");
    handle = made;
  }
  return handle;
}

// A stack of row-major matrices, as stored in memory.
struct Stack {
  int64_t count, rows, columns;
};

Stack stack_of(const TensorView& t, const char* name) {
  if (t.ndim() < 2 || t.device().device_type != kDLCUDA || !t.IsContiguous())
    TVM_FFI_THROW(ValueError) << "cuBLAS: " << name << " is not a contiguous matrix on a GPU";
  Stack stack{1, t.size(t.ndim() - 2), t.size(t.ndim() - 1)};
  for (int i = 0; i < t.ndim() - 2; ++i) stack.count *= t.size(i);
  return stack;
}

void* data_of(const TensorView& t) { return static_cast<char*>(t.data_ptr()) + t.byte_offset(); }

int data_type(DLDataType t) {
  if (t.lanes == 1 && t.code == kDLFloat && t.bits == 32) return kFloat32;
  if (t.lanes == 1 && t.code == kDLFloat && t.bits == 64) return kFloat64;
  if (t.lanes == 1 && t.code == kDLFloat && t.bits == 16) return kFloat16;
  if (t.lanes == 1 && t.code == kDLBfloat && t.bits == 16) return kBfloat16;
  TVM_FFI_THROW(TypeError) << "cuBLAS: products of the DLPack type code " << int{t.code} << " with "
                           << int{t.bits} << " bits are not supported";
}

int narrow(int64_t value) {
  if (value > INT_MAX)
    TVM_FFI_THROW(ValueError) << "cuBLAS: an extent of " << value << " is above 2^31 - 1";
  return static_cast<int>(value);
}

// out = a b on the current stream: (..., M, K) by (..., K, N) with the same leading axes, or by a
// single (K, N), which is multiplied with all rows of `a`. A `transposed` operand is stored with
// its last two axes swapped. The operands have the same dtype; for float16 or bfloat16, the result
// has that dtype or float32. Sums are float64 for float64, else float32; with `tf32`, float32
// operands may be rounded to 11 significant bits. cuBLAS works in `workspace`, so that it allocates
// nothing while the stream is captured.
void multiply(TensorView a, TensorView b, bool a_transposed, bool b_transposed, bool tf32,
              TensorView out, TensorView workspace) {
  const Library& cublas = library();
  Stack x = stack_of(a, "the first operand"), y = stack_of(b, "the second operand"),
        z = stack_of(out, "the result");
  if (y.count == 1 && x.count > 1 && !a_transposed) {
    x = {1, x.count * x.rows, x.columns};
    z = {1, z.count * z.rows, z.columns};
  }
  const int64_t m = a_transposed ? x.columns : x.rows, k = a_transposed ? x.rows : x.columns;
  const int64_t n = b_transposed ? y.rows : y.columns;
  if ((b_transposed ? y.columns : y.rows) != k || z.rows != m || z.columns != n ||
      x.count != y.count || x.count != z.count)
    TVM_FFI_THROW(ValueError) << "cuBLAS: the shapes of a product do not fit";
  const int from = data_type(a.dtype()), to = data_type(out.dtype());
  if (from != data_type(b.dtype()) || a.device().device_id != out.device().device_id)
    TVM_FFI_THROW(ValueError) << "cuBLAS: operands of a product differ in dtype or GPU";

  const float one = 1, zero = 0;
  const double wide_one = 1, wide_zero = 0;
  const bool wide = from == kFloat64;
  const void* alpha = wide ? static_cast<const void*>(&wide_one) : &one;
  const void* beta = wide ? static_cast<const void*>(&wide_zero) : &zero;
  const int compute = wide ? kCompute64 : tf32 && from == kFloat32 ? kCompute32Tf32 : kCompute32;
  const int operation_a = a_transposed ? kTransposed : kPlain;
  const int operation_b = b_transposed ? kTransposed : kPlain;

  const int device = a.device().device_id;
  static const ffi::Function set_device = ffi::Function::GetGlobalRequired("__tvm_set_device");
  static std::mutex mutex;  // a handle keeps a stream and a workspace from call to call
  std::lock_guard<std::mutex> lock(mutex);
  set_device(static_cast<int>(kDLCUDA), device);
  Handle handle = handle_of(device);
  cublas.check(cublas.set_stream(handle, TVMFFIEnvGetStream(kDLCUDA, device)),
               "setting the stream");
  cublas.check(  // after set_stream, which resets the workspace
      cublas.set_workspace(handle, data_of(workspace), static_cast<size_t>(workspace.numel())),
      "setting the workspace");
  // In cuBLAS's terms, row-major C = A B is C^T = B^T A^T.
  if (x.count == 1) {
    cublas.check(
        cublas.gemm(handle, operation_b, operation_a, narrow(n), narrow(m), narrow(k), alpha,
                    data_of(b), from, narrow(y.columns), data_of(a), from, narrow(x.columns), beta,
                    data_of(out), to, narrow(n), compute, kDefaultAlgorithm),
        "a product");
  } else {
    cublas.check(cublas.gemm_batched(handle, operation_b, operation_a, narrow(n), narrow(m),
                                     narrow(k), alpha, data_of(b), from, narrow(y.columns),
                                     y.rows * y.columns, data_of(a), from, narrow(x.columns),
                                     x.rows * x.columns, beta, data_of(out), to, narrow(n), m * n,
                                     narrow(x.count), compute, kDefaultAlgorithm),
                 "a batch of products");
  }
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(needle_cublas_gemm, multiply);
