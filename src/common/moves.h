// Functions over views, each for one call from Python: other views of the same memory, and chains
// of kernels that are too short to be called one by one.
#pragma once

#include <optional>
#include <vector>

#include "common/view.h"

namespace needle {
namespace nd {

// The same elements under another shape of equal size; a view where strides can express it.
View reshape(const View& x, const Dims& shape);
// x's axes `axis1` and `axis2`, which differ, as one axis at the end: the elements (i, i + offset).
View diagonal(const View& x, int64_t offset, int axis1, int axis2);
// y[(i + shifts[k]) % n] = x[i] along each of the distinct axes; 0 <= shifts[k] < n, or n is 0.
View roll(const View& x, const Dims& shifts, const Dims& axes);
// sum(x) / count over the axes; integers are computed in float64.
View mean(const View& x, const Dims& axes, bool keepdims);
// exp(x - max) / sum(exp(x - max)) along an axis, or its logarithm; integers in float64.
View softmax(const View& x, int64_t axis, bool log);
// The Kronecker product; the operand with fewer axes gets axes of extent 1 in front.
View kron(const View& a, const View& b);
// The parts one after the other along an axis or, if `stacked`, along a new axis, in their common
// dtype.
View concat(const std::vector<const View*>& parts, int64_t axis, bool stacked);
// Matmul with NumPy's rules for vectors.
View product(const View& a, const View& b);

}  // namespace nd
}  // namespace needle
