#include "capi/weights.h"

#include <cstring>
#include <map>
#include <set>
#include <string>

#include "capi/failure.h"
#include "capi/sha256.h"

namespace needle::capi {

namespace {

bool same(const NamedArray& one, const NamedArray& other) {
  return one.dtype == other.dtype && one.shape == other.shape &&
         (one.bytes == 0 || std::memcmp(one.data, other.data, one.bytes) == 0);
}

std::string digest_of(const NamedArray& array) {  // as needle_runtime.artifact.function.digest_of
  std::string text = needle_dtype_name(array.dtype);
  text += "[" + joined(array.shape) + "]";
  text.append(array.data, array.bytes);
  return sha256(text.data(), text.size());
}

}  // namespace

std::vector<NamedArray> in_order(const Function& main, const std::vector<const ArraySpec*>& specs,
                                 const std::vector<NamedArray>& given, bool weights) {
  std::map<std::string, const NamedArray*> by_name;
  std::map<std::string, const std::vector<std::string>*> tied;
  std::set<std::string> wanted;
  std::vector<std::string> problems;
  for (const ArraySpec* spec : specs) wanted.insert(spec->name);
  if (weights)
    for (const auto& group : main.ties)
      for (const std::string& name : group) tied[name] = &group;
  for (const NamedArray& array : given) {
    const std::string name = quote(array.name);
    const auto fixed = main.fixed.find(array.name);
    if (weights && fixed != main.fixed.end()) {
      if (fixed->second && digest_of(array) != *fixed->second)
        problems.push_back(name + " is a constant of the code, compiled with another value");
    } else if (wanted.count(array.name) == 0 && tied.count(array.name) == 0) {
      problems.push_back("unexpected " + name);
    } else if (!by_name.emplace(array.name, &array).second) {
      problems.push_back(name + " is given twice");
    }
  }
  std::vector<NamedArray> found;
  for (const ArraySpec* spec : specs) {
    auto at = by_name.find(spec->name);
    if (at == by_name.end() && tied.count(spec->name) != 0)
      for (const std::string& name : *tied[spec->name])
        if (at == by_name.end()) at = by_name.find(name);
    if (at == by_name.end()) {
      problems.push_back("missing " + quote(spec->name));
      continue;
    }
    const NamedArray& array = *at->second;
    if (array.dtype != spec->dtype || array.shape != spec->described)
      problems.push_back(quote(at->first) + " is " + describe(array.dtype, array.shape) + ", not " +
                         describe(*spec));
    found.push_back(array);
  }
  if (weights)
    for (const auto& group : main.ties) {
      const NamedArray* first = nullptr;
      for (const std::string& name : group) {
        const auto at = by_name.find(name);
        if (at == by_name.end()) continue;
        if (first == nullptr) first = at->second;
        if (!same(*first, *at->second))
          problems.push_back(quote(first->name) + " and " + quote(name) +
                             " are one parameter and have different values");
      }
    }
  if (problems.empty()) return found;
  throw Failure(NEEDLE_ERROR_WEIGHTS, "weights do not fit: " + joined(problems, "; "));
}

}  // namespace needle::capi
