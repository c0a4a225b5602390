// Chooses the kernel table by the processor's instruction sets, or by NEEDLE_CPU_ISA.
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "cpu/grid_kernels.h"
#include "cpu/kernel_table.h"

namespace needle {

namespace generic {
void fill_table(KernelTable* t);
void fill_grid(GridKernels* f32, GridKernels* f64);
}  // namespace generic
#ifdef NEEDLE_X86
namespace avx2 {
void fill_table(KernelTable* t);
void fill_grid(GridKernels* f32, GridKernels* f64);
}  // namespace avx2
namespace avx512 {
void fill_table(KernelTable* t);
void fill_grid(GridKernels* f32, GridKernels* f64);
}  // namespace avx512
#endif

namespace {

struct Variant {
  const char* name;
  void (*fill)(KernelTable*);
  void (*fill_grid)(GridKernels*, GridKernels*);
  bool supported;
};

KernelTable g_table;
GridKernels g_grid[2];  // of float32 and float64

}  // namespace

const KernelTable& kernels() { return g_table; }

const GridKernels& grid_kernels(DType t) { return g_grid[t == DType::float64]; }

void select_isa() {
  const Variant variants[] = {
#ifdef NEEDLE_X86
      {"avx512", avx512::fill_table, avx512::fill_grid,
       __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")},
      {"avx2", avx2::fill_table, avx2::fill_grid,
       __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("f16c")},
#endif
      {"generic", generic::fill_table, generic::fill_grid, true},
  };
  const char* wanted = std::getenv("NEEDLE_CPU_ISA");
  if (wanted != nullptr && *wanted == '\0') wanted = nullptr;
  for (const Variant& v : variants) {
    if (wanted != nullptr && std::string(wanted) != v.name) continue;
    if (!v.supported) {
      if (wanted == nullptr) continue;
      throw std::invalid_argument(std::string("NEEDLE_CPU_ISA=") + wanted +
                                  ": this processor does not support it");
    }
    v.fill(&g_table);
    v.fill_grid(&g_grid[0], &g_grid[1]);
    return;
  }
  throw std::invalid_argument(std::string("NEEDLE_CPU_ISA=") + wanted +
                              ": this build has generic"
#ifdef NEEDLE_X86
                              ", avx2 and avx512"
#endif
  );
}

}  // namespace needle
