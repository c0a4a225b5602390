// The strided matrices that a BLAS accepts.
#pragma once

#include <algorithm>
#include <climits>
#include <cstdint>

namespace needle {

struct BlasLayout {
  bool transposed;
  int leading;
};

// Describes the (rows x cols) matrix with these strides as a row-major matrix or as a transposed
// one. Returns false unless its rows or its columns are contiguous and do not overlap.
inline bool blas_layout(int64_t row, int64_t col, int64_t rows, int64_t cols, BlasLayout* out) {
  if ((col == 1 || cols == 1) && (row >= std::max<int64_t>(1, cols) || rows == 1) &&
      row <= INT_MAX) {
    *out = {false, static_cast<int>(std::max(row, std::max<int64_t>(1, cols)))};
    return true;
  }
  if ((row == 1 || rows == 1) && (col >= std::max<int64_t>(1, rows) || cols == 1) &&
      col <= INT_MAX) {
    *out = {true, static_cast<int>(std::max(col, std::max<int64_t>(1, rows)))};
    return true;
  }
  return false;
}

}  // namespace needle
