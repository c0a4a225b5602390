// Weights and state by name, put in the order of the compiled code's arguments.
#pragma once

#include <vector>

#include "capi/manifest.h"
#include "capi/safetensors.h"

namespace needle::capi {

// The arrays for `specs`, in their order, by the rules of needle_runtime.weights.in_order;
// `weights` says whether the specs include the weights. Raises a Failure that lists everything that
// does not fit.
std::vector<NamedArray> in_order(const Function& main, const std::vector<const ArraySpec*>& specs,
                                 const std::vector<NamedArray>& given, bool weights);

}  // namespace needle::capi
