#include "capi/features.h"

#include <cstdint>
#include <set>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace needle::capi {

namespace {

std::set<std::string> read_features() {
  std::set<std::string> found;
#if defined(__x86_64__)
  uint32_t words[4] = {}, enabled = 0;  // XCR0: the registers that the operating system saves
  if (__get_cpuid_count(1, 0, &words[0], &words[1], &words[2], &words[3]) != 0 &&
      (words[2] >> 27 & 1) != 0) {
    uint32_t high;
    __asm__ volatile("xgetbv" : "=a"(enabled), "=d"(high) : "c"(0));
  }
#define NEEDLE_X86(name, leaf, subleaf, word, bit, saved)                                  \
  if (__get_cpuid_count(leaf, subleaf, &words[0], &words[1], &words[2], &words[3]) != 0 && \
      (words[word] >> (bit) & 1) != 0 && (enabled & (saved)) == (saved))                   \
    found.insert(name);
#define NEEDLE_ARM(name, word, bit)
#include "capi/features.inc"
#elif defined(__aarch64__) && defined(__linux__)
#define NEEDLE_X86(name, leaf, subleaf, word, bit, saved)
#define NEEDLE_ARM(name, word, bit) \
  if ((getauxval(word) >> (bit) & 1) != 0) found.insert(name);
#include "capi/features.inc"
#endif
  return found;
}

}  // namespace

std::vector<std::string> missing_features(const std::vector<std::string>& required) {
  static const std::set<std::string> features = read_features();
  std::vector<std::string> missing;
  for (const std::string& name : required)
    if (features.count(name) == 0) missing.push_back(name);
  return missing;
}

}  // namespace needle::capi
