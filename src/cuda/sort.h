// Positions of an index in rising order, equal ones in the order of the index.
#pragma once

#include "cuda/runtime.h"

namespace needle {
namespace cuda {

struct Sorted {
  const int64_t *keys, *places;
};

class Sorter {
 public:
  // Memory for n positions below `extent`; OutOfMemory names `what`.
  Sorter(const char* what, int device, int64_t n, int64_t extent);
  // `index` may hold positions from the end. The result lasts as long as the sorter.
  Sorted run(const Work& work, const int64_t* index) const;

 private:
  int64_t n_, extent_, tiles_;
  Scratch pairs_, counts_;
};

}  // namespace cuda
}  // namespace needle
