// A cuBLAS for the emulated GPU, for tests. It has the functions that cublas_gemm.cc calls,
// in the plainest form, with the names and numbers that NVIDIA documents. It is stricter than the
// real one: a matmul needs a workspace that was set after the stream was, as a captured one must
// have.
#include <cstring>

#include "graphs.h"

namespace {

constexpr int kSuccess = 0, kNotInitialized = 1, kInvalidValue = 7, kInternalError = 14,
              kNotSupported = 15;
constexpr int kFloat32 = 0, kFloat64 = 1, kBfloat16 = 14;
constexpr int kCompute32 = 68, kCompute64 = 70, kCompute32Tf32 = 77;
constexpr size_t kAlignment = 256;

struct Context {
  cudaStream_t stream = nullptr;
  void* workspace = nullptr;
  size_t bytes = 0;
};

int64_t g_products = 0, g_rounded = 0;

double load(const void* at, int64_t i, int type) {
  if (type == kFloat32) return static_cast<const float*>(at)[i];
  if (type == kFloat64) return static_cast<const double*>(at)[i];
  const uint32_t bits = static_cast<uint32_t>(static_cast<const uint16_t*>(at)[i]) << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof wide);
  return wide;
}

// Column-major, as in BLAS: element (i, j) of an operand is at i + j * leading, or at
// j + i * leading if the operand is transposed.
struct Product {
  bool a_transposed, b_transposed;
  int m, n, k, lda, ldb, ldc, type, result_type;
  int64_t a_stride, b_stride, c_stride;
  const void *a, *b;
  void* c;
  void* workspace;

  void element() const {
    const int64_t i = blockIdx.x, j = blockIdx.y, batch = blockIdx.z;
    double sum = 0;
    for (int64_t t = 0; t < k; ++t) {
      const int64_t at_a = batch * a_stride + (a_transposed ? t + i * lda : i + t * lda);
      const int64_t at_b = batch * b_stride + (b_transposed ? j + t * ldb : t + j * ldb);
      sum += load(a, at_a, type) * load(b, at_b, type);
    }
    const int64_t at = batch * c_stride + i + j * ldc;
    if (result_type == kFloat64)
      static_cast<double*>(c)[at] = sum;
    else
      static_cast<float*>(c)[at] = static_cast<float>(sum);
  }
};

int submit(void* handle, Product p, int batch, const void* alpha, const void* beta, int compute) {
  const auto* context = static_cast<Context*>(handle);
  if (context == nullptr) return kNotInitialized;
  if (context->workspace == nullptr || context->bytes == 0 ||
      reinterpret_cast<uintptr_t>(context->workspace) % kAlignment != 0)
    return kInternalError;
  const bool wide = p.type == kFloat64;
  if (compute != (wide ? kCompute64 : kCompute32) && (wide || compute != kCompute32Tf32))
    return kNotSupported;
  const double one = wide ? *static_cast<const double*>(alpha) : *static_cast<const float*>(alpha);
  const double zero = wide ? *static_cast<const double*>(beta) : *static_cast<const float*>(beta);
  if (one != 1 || zero != 0) return kNotSupported;
  if (p.m < 1 || p.n < 1 || p.k < 1 || batch < 1 || p.lda < (p.a_transposed ? p.k : p.m) ||
      p.ldb < (p.b_transposed ? p.n : p.k) || p.ldc < p.m)
    return kInvalidValue;
  p.workspace = context->workspace;
  ++g_products;
  g_rounded += compute == kCompute32Tf32;
  return emulated::submit(context->stream, [p, batch](cudaStream_t stream) {
    const void* pointers[] = {p.a, p.b, p.c, p.workspace};
    const dim3 grid(static_cast<unsigned>(p.m), static_cast<unsigned>(p.n),
                    static_cast<unsigned>(batch));
    return emulated::run(
        grid, dim3(1), [](void* context) { static_cast<const Product*>(context)->element(); },
        const_cast<Product*>(&p), stream, pointers, 4);
  });
}

}  // namespace

extern "C" {

int cublasCreate_v2(void** handle) {
  *handle = new Context;
  return kSuccess;
}
int cublasSetStream_v2(void* handle, void* stream) {
  *static_cast<Context*>(handle) = Context{static_cast<cudaStream_t>(stream), nullptr, 0};
  return kSuccess;
}
int cublasSetWorkspace_v2(void* handle, void* workspace, size_t bytes) {
  static_cast<Context*>(handle)->workspace = workspace;
  static_cast<Context*>(handle)->bytes = bytes;
  return kSuccess;
}
int cublasSetMathMode(void*, int) { return kSuccess; }
const char* cublasGetStatusString(int status) {
  return status == kInternalError ? "CUBLAS_STATUS_INTERNAL_ERROR" : "another error";
}
int cublasGemmEx(void* handle, int trans_a, int trans_b, int m, int n, int k, const void* alpha,
                 const void* a, int a_type, int lda, const void* b, int b_type, int ldb,
                 const void* beta, void* c, int c_type, int ldc, int compute, int) {
  if (a_type != b_type) return kNotSupported;
  return submit(handle,
                {trans_a == 1, trans_b == 1, m, n, k, lda, ldb, ldc, a_type, c_type, 0, 0, 0, a, b,
                 c, nullptr},
                1, alpha, beta, compute);
}
int cublasGemmStridedBatchedEx(void* handle, int trans_a, int trans_b, int m, int n, int k,
                               const void* alpha, const void* a, int a_type, int lda,
                               long long a_stride, const void* b, int b_type, int ldb,
                               long long b_stride, const void* beta, void* c, int c_type, int ldc,
                               long long c_stride, int batch, int compute, int) {
  if (a_type != b_type) return kNotSupported;
  return submit(handle,
                {trans_a == 1, trans_b == 1, m, n, k, lda, ldb, ldc, a_type, c_type, a_stride,
                 b_stride, c_stride, a, b, c, nullptr},
                batch, alpha, beta, compute);
}

// For tests: the number of matmuls so far, and of those that may round operands to tf32.
int64_t needle_products() { return g_products; }
int64_t needle_rounded_products() { return g_rounded; }

}  // extern "C"
