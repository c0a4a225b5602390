#include "cpu/blas.h"

#include <dlfcn.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "common/blas_layout.h"
#include "cpu/kernel_table.h"

namespace needle {

namespace {

constexpr int kRowMajor = 101, kPlain = 111, kTransposed = 112;

using Sgemm = void (*)(int, int, int, int, int, int, float, const float*, int, const float*, int,
                       float, float*, int);
using Dgemm = void (*)(int, int, int, int, int, int, double, const double*, int, const double*, int,
                       double, double*, int);

Sgemm g_sgemm = nullptr;
Dgemm g_dgemm = nullptr;
std::string g_status = "not loaded";
GemmChoice g_choice = GemmChoice::automatic;

// Sets an environment variable while the library is loaded, unless the user has set it.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const char* value) : name_(name) {
    if (value == nullptr || std::getenv(name) != nullptr) return;
    set_ = true;
    setenv(name, value, 1);
  }
  ~ScopedVariable() {
    if (set_) unsetenv(name_);
  }

 private:
  const char* name_;
  bool set_ = false;
};

void load() {
#ifdef NEEDLE_BLAS_LIBRARY
  Dl_info self;
  if (dladdr(reinterpret_cast<void*>(&load), &self) == 0 || self.dli_fname == nullptr) {
    g_status = "the module's own path is unknown";
    return;
  }
  std::string path = self.dli_fname;
  path = path.substr(0, path.find_last_of('/') + 1) + NEEDLE_BLAS_LIBRARY;
  void* library;
  {
    // The library's own threads stay off from the beginning: our pool splits the work.
    ScopedVariable threads("OPENBLAS_NUM_THREADS", "1");
    library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  if (library == nullptr) {
    g_status = dlerror();
    return;
  }
  auto set_threads = reinterpret_cast<void (*)(int)>(
      dlsym(library, NEEDLE_BLAS_PREFIX "openblas_set_num_threads"));
  if (set_threads != nullptr) set_threads(1);
  g_sgemm = reinterpret_cast<Sgemm>(dlsym(library, NEEDLE_BLAS_PREFIX "cblas_sgemm"));
  g_dgemm = reinterpret_cast<Dgemm>(dlsym(library, NEEDLE_BLAS_PREFIX "cblas_dgemm"));
  if (g_sgemm == nullptr || g_dgemm == nullptr) {
    g_sgemm = nullptr;
    g_status = path + " lacks cblas_sgemm or cblas_dgemm";
    return;
  }
  g_status = path;
#else
  g_status = "no BLAS was found when needle was built";
#endif
}

}  // namespace

void init_blas() {
  const char* wanted = std::getenv("NEEDLE_GEMM");
  std::string choice = wanted == nullptr ? "" : wanted;
  if (choice == "own") {
    g_choice = GemmChoice::own;
  } else if (choice == "blas") {
    g_choice = GemmChoice::blas;
  } else if (!choice.empty() && choice != "auto") {
    throw std::invalid_argument("NEEDLE_GEMM=" + choice + " is not auto, own or blas");
  }
  // By measurement, our kernels are faster with AVX2 or AVX-512, and BLAS is faster without them.
  bool prefer_own = std::string(kernels().isa) != "generic";
  if (g_choice == GemmChoice::blas || (g_choice == GemmChoice::automatic && !prefer_own)) load();
  if (g_choice == GemmChoice::blas && g_sgemm == nullptr)
    throw std::invalid_argument("NEEDLE_GEMM=blas: " + g_status);
}

GemmChoice gemm_choice() { return g_choice; }
bool blas_loaded() { return g_sgemm != nullptr; }
const char* blas_status() { return g_status.c_str(); }

bool blas_gemm(const GemmArgs& g, bool single) {
  BlasLayout a, b;
  if (std::max({g.m, g.n, g.k, g.ldc}) > INT_MAX || g.k == 0 ||
      !blas_layout(g.a_row, g.a_col, g.m, g.k, &a) || !blas_layout(g.b_row, g.b_col, g.k, g.n, &b))
    return false;
  int m = static_cast<int>(g.m), n = static_cast<int>(g.n), k = static_cast<int>(g.k);
  const int ldc = static_cast<int>(g.ldc), lda = a.leading, ldb = b.leading;
  const int ta = a.transposed ? kTransposed : kPlain, tb = b.transposed ? kTransposed : kPlain;
  if (single) {
    g_sgemm(kRowMajor, ta, tb, m, n, k, 1.0f, reinterpret_cast<const float*>(g.a), lda,
            reinterpret_cast<const float*>(g.b), ldb, 0.0f, reinterpret_cast<float*>(g.c), ldc);
  } else {
    g_dgemm(kRowMajor, ta, tb, m, n, k, 1.0, reinterpret_cast<const double*>(g.a), lda,
            reinterpret_cast<const double*>(g.b), ldb, 0.0, reinterpret_cast<double*>(g.c), ldc);
  }
  return true;
}

}  // namespace needle
