// Sorts the positions of an index; equal positions keep the index's order.
#pragma once

#include "cuda/runtime.h"

namespace needle {
namespace cuda {

struct Sorted {
  const int64_t *keys, *places;
};

class Sorter {
 public:
  // Allocates memory for n positions below `extent`. Throws OutOfMemory that names `what`.
  Sorter(const char* what, int device, int64_t n, int64_t extent);
  // `index` may hold negative positions, which count from the end. The result lives as long as the
  // sorter.
  Sorted run(const Work& work, const int64_t* index) const;

 private:
  int64_t n_, extent_, tiles_;
  Scratch pairs_, counts_;
};

}  // namespace cuda
}  // namespace needle
