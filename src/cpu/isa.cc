// Chooses the kernel table by the processor's instruction sets, or by NEEDLE_CPU_ISA.
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "cpu/grid_kernels.h"
#include "cpu/kernel_table.h"

namespace needle {

#define NEEDLE_VARIANT(name, supported)               \
  namespace name {                                    \
  void fill_table(KernelTable* t);                    \
  void fill_grid(GridKernels* f32, GridKernels* f64); \
  }
#include "isa_variants.inc"
#undef NEEDLE_VARIANT

namespace {

struct Variant {
  const char* name;
  void (*fill)(KernelTable*);
  void (*fill_grid)(GridKernels*, GridKernels*);
  bool supported;
};

KernelTable g_table;
GridKernels g_grid[2];  // kernels of float32 and of float64

}  // namespace

const KernelTable& kernels() { return g_table; }

const GridKernels& grid_kernels(DType t) { return g_grid[t == DType::float64]; }

void select_isa() {
  const Variant variants[] = {
#define NEEDLE_VARIANT(name, supported) {#name, name::fill_table, name::fill_grid, supported},
#include "isa_variants.inc"
#undef NEEDLE_VARIANT
  };
  const char* wanted = std::getenv("NEEDLE_CPU_ISA");
  if (wanted != nullptr && *wanted == '\0') wanted = nullptr;
  std::string names;
  for (const Variant& v : variants) {
    names += std::string(names.empty() ? "" : ", ") + v.name;
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
  throw std::invalid_argument(std::string("NEEDLE_CPU_ISA=") + wanted + ": this build has " +
                              names);
}

}  // namespace needle
