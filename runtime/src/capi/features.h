// The features of this machine's processor, by LLVM's names.
#pragma once

#include <string>
#include <vector>

namespace needle::capi {

// The names among `required` that this processor lacks, or that are not names for its architecture.
std::vector<std::string> missing_features(const std::vector<std::string>& required);

}  // namespace needle::capi
