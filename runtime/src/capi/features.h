// The features of this machine's processor, named as in LLVM.
#pragma once

#include <string>
#include <vector>

namespace needle::capi {

// The features in `required` that this processor lacks or that its architecture does not have.
std::vector<std::string> missing_features(const std::vector<std::string>& required);

}  // namespace needle::capi
