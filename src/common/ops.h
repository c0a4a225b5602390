// Enumerations of the rows in ops.inc.
#pragma once

namespace needle {

enum class Category { FLOAT, SAME, NUMBER, BITS, INTEGER, PREDICATE, TRUE_DIVIDE, LOGICAL };

enum class Unary {
#define NEEDLE_UNARY(name, category) name,
#include "common/ops.inc"
#undef NEEDLE_UNARY
  count
};

enum class Binary {
#define NEEDLE_BINARY(name, category) name,
#include "common/ops.inc"
#undef NEEDLE_BINARY
  count
};

enum class Reduction { sum, prod, max, min, count };

struct OpInfo {
  const char* name;
  Category category;
};

constexpr OpInfo kUnary[] = {
#define NEEDLE_UNARY(name, category) {#name, Category::category},
#include "common/ops.inc"
#undef NEEDLE_UNARY
};

constexpr OpInfo kBinary[] = {
#define NEEDLE_BINARY(name, category) {#name, Category::category},
#include "common/ops.inc"
#undef NEEDLE_BINARY
};

// An op has the kernels of its category, one for each dtype to which operands are converted.
constexpr bool takes_integers(Category c) {
  return c != Category::FLOAT && c != Category::TRUE_DIVIDE;
}
constexpr bool takes_floats(Category c) { return c != Category::BITS && c != Category::INTEGER; }
constexpr bool takes_bools(Category c) {
  return takes_integers(c) && c != Category::NUMBER && c != Category::INTEGER;
}
constexpr bool gives_bools(Category c) {
  return c == Category::PREDICATE || c == Category::LOGICAL;
}

constexpr const char* kReductionNames[] = {"sum", "prod", "max", "min"};

// The new value of an element at which several values are put: the last of them, their sum with the
// old value, or the largest or least of them and the old value.
enum class Put { set, add, max, min };

// The optimizers' settings for one step.
struct SgdFactors {
  double lr, momentum, dampening, weight_decay;
};

struct AdamFactors {
  double lr, beta1, beta2, eps, weight_decay, correction1, correction2;
  bool decoupled;
};

}  // namespace needle
