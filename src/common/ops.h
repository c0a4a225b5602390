// Enumerations of the rows in ops.inc.
#pragma once

namespace needle {

enum class Category { FLOAT, SAME, NUMBER, PREDICATE, TRUE_DIVIDE, LOGICAL };

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

constexpr const char* kReductionNames[] = {"sum", "prod", "max", "min"};

}  // namespace needle
