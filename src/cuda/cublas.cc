#include "cuda/cublas.h"

#include <dlfcn.h>

#include <atomic>
#include <climits>
#include <cstdlib>
#include <map>
#include <stdexcept>
#include <utility>

#include "common/blas_layout.h"
#include "common/blocks.h"

namespace needle {
namespace cuda {

namespace {

// cuBLAS's binary interface, unchanged since version 11 (docs.nvidia.com/cuda/cublas).
using Handle = void*;
constexpr int kPlain = 0, kTransposed = 1;
constexpr int kFloat32 = 0, kFloat64 = 1, kFloat16 = 2, kBfloat16 = 14;  // cudaDataType
constexpr int kCompute32 = 68, kCompute32Tf32 = 77, kCompute64 = 70;     // cublasComputeType_t
constexpr int kDefaultAlgorithm = -1;
constexpr int kDefaultMath = 0, kNoReducedReduction = 16;  // cublasMath_t

struct Library {
  int (*create)(Handle*) = nullptr;
  int (*set_stream)(Handle, cudaStream_t) = nullptr;
  int (*set_math_mode)(Handle, int) = nullptr;
  const char* (*explain)(int) = nullptr;
  int (*gemm)(Handle, int, int, int, int, int, const void*, const void*, int, int, long long,
              const void*, int, int, long long, const void*, void*, int, int, long long, int, int,
              int) = nullptr;
  std::string status;
  bool loaded = false;
};

enum class Choice { automatic, own, blas };
Choice g_choice = Choice::automatic;
std::atomic<bool> g_tf32{false};
std::mutex g_mutex;  // guards the following variables
std::vector<std::string> g_folders;

constexpr const char* kNames[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so.11"};

template <class F>
bool find(void* library, const char* name, F* function) {
  *function = reinterpret_cast<F>(dlsym(library, name));
  return *function != nullptr;
}

Library load() {
  Library l;
#ifdef NEEDLE_CUDA_EMULATED
  l.status = "emulated: own kernels";
  return l;
#endif
  std::vector<std::string> paths(std::begin(kNames), std::end(kNames));
  {
    std::lock_guard<std::mutex> lock(g_mutex);
    for (const std::string& folder : g_folders)
      for (const char* name : kNames) paths.push_back(folder + "/" + name);
  }
  void* library = nullptr;
  for (const std::string& path : paths) {
    // cuBLAS needs cublasLt from the same folder; the loader finds cublasLt once it is loaded.
    const size_t at = path.rfind("libcublas") + 9;
    dlopen((path.substr(0, at) + "Lt" + path.substr(at)).c_str(), RTLD_NOW | RTLD_LOCAL);
    library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) continue;
    l.status = path;
    break;
  }
  if (library == nullptr) {
    l.status = "cuBLAS was not found";
    return l;
  }
  l.loaded = find(library, "cublasCreate_v2", &l.create) &&
             find(library, "cublasSetStream_v2", &l.set_stream) &&
             find(library, "cublasSetMathMode", &l.set_math_mode) &&
             find(library, "cublasGetStatusString", &l.explain) &&
             find(library, "cublasGemmStridedBatchedEx", &l.gemm);
  if (!l.loaded) l.status += " lacks a required function";
  return l;
}

const Library& library() {
  static const Library* the = new Library(load());
  return *the;
}

bool wanted() {
  if (g_choice == Choice::own) return false;
  if (library().loaded) return true;
  if (g_choice == Choice::blas) throw CudaError("cuda: NEEDLE_GEMM=blas: " + library().status);
  return false;
}

void check_blas(int status, const char* doing) {
  if (status != 0)
    throw CudaError(std::string("cuda: matmul: cuBLAS: ") + doing + ": " +
                    library().explain(status));
}

// One handle per stream, because the matmuls of a stream share cuBLAS's workspace. Used under the
// mutex that a Work holds. Handles, like streams, are never destroyed.
Handle handle_of(const Work& work) {
  static auto* handles = new std::map<std::pair<int, cudaStream_t>, Handle>;
  Handle& handle = (*handles)[{work.device(), work.stream()}];
  if (handle == nullptr) {
    Handle made = nullptr;
    check_blas(library().create(&made), "starting");
    check_blas(library().set_stream(made, work.stream()), "setting the stream");
    check_blas(library().set_math_mode(made, kDefaultMath | kNoReducedReduction),
               "setting the precision");
    handle = made;
  }
  return handle;
}

int data_type(DType t) {
  switch (t) {
    case DType::float64:
      return kFloat64;
    case DType::float16:
      return kFloat16;
    case DType::bfloat16:
      return kBfloat16;
    default:
      return kFloat32;
  }
}

}  // namespace

void init_cublas() {
  const char* set = std::getenv("NEEDLE_GEMM");
  const std::string choice = set == nullptr ? "" : set;
  if (choice == "own") {
    g_choice = Choice::own;
  } else if (choice == "blas") {
    g_choice = Choice::blas;
  } else if (!choice.empty() && choice != "auto") {
    throw std::invalid_argument("NEEDLE_GEMM=" + choice + " is not auto, own or blas");
  }
}

void add_library_folders(std::vector<std::string> folders) {
  std::lock_guard<std::mutex> lock(g_mutex);
  for (std::string& folder : folders) g_folders.push_back(std::move(folder));
}

std::string blas_status() {
  return g_choice == Choice::own ? "NEEDLE_GEMM=own: own kernels" : library().status;
}

void allow_tf32(bool allow) { g_tf32 = allow; }
bool tf32_allowed() { return g_tf32; }

bool cublas_multiply(const Work& work, const GemmArgs& g, DType t, const Loop<2>& batch,
                     bool accumulate) {
  // One call handles an evenly spaced batch.
  if (batch.ndim != 1 || std::max({g.m, g.n, g.k, g.ldc, batch.total}) > INT_MAX) return false;
  BlasLayout a, b;
  if (!blas_layout(g.a_row, g.a_col, g.m, g.k, &a) ||
      !blas_layout(g.b_row, g.b_col, g.k, g.n, &b) || !wanted())
    return false;
  const Library& l = library();
  Handle handle = handle_of(work);
  const float one32 = 1, more32 = accumulate ? 1 : 0;
  const double one64 = 1, more64 = accumulate ? 1 : 0;
  const bool wide = t == DType::float64;
  const void* alpha = wide ? static_cast<const void*>(&one64) : &one32;
  const void* beta = wide ? static_cast<const void*>(&more64) : &more32;
  const int type = data_type(t);
  const int compute =
      wide ? kCompute64 : (t == DType::float32 && g_tf32 ? kCompute32Tf32 : kCompute32);
  // Row-major C = A B is column-major C^T = B^T A^T, which cuBLAS computes.
  check_blas(
      l.gemm(handle, b.transposed ? kTransposed : kPlain, a.transposed ? kTransposed : kPlain,
             static_cast<int>(g.n), static_cast<int>(g.m), static_cast<int>(g.k), alpha, g.b, type,
             b.leading, batch.strides[1][0], g.a, type, a.leading, batch.strides[0][0], beta, g.c,
             type, static_cast<int>(g.ldc), g.m * g.ldc, static_cast<int>(batch.total), compute,
             kDefaultAlgorithm),
      "the product");
  return true;
}

}  // namespace cuda
}  // namespace needle
