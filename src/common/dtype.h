// Element types, one row each. Some types have a wider compute type: the halves, float16 and
// bfloat16, are computed in float32, and integers of 8 and 16 bits in int32. Each such type has an
// Io specialisation in src/common/scalar.h.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace needle {

// X(name, storage type, kind, DLPack code, bits); kind orders the scalar kinds for promotion.
#define NEEDLE_DTYPES(X)          \
  X(float32, float, 2, 2, 32)     \
  X(float64, double, 2, 2, 64)    \
  X(int32, int32_t, 1, 0, 32)     \
  X(int64, int64_t, 1, 0, 64)     \
  X(boolean, uint8_t, 0, 6, 8)    \
  X(float16, uint16_t, 2, 2, 16)  \
  X(bfloat16, uint16_t, 2, 4, 16) \
  X(int8, int8_t, 1, 0, 8)        \
  X(uint8, uint8_t, 1, 1, 8)      \
  X(int16, int16_t, 1, 0, 16)     \
  X(uint16, uint16_t, 1, 1, 16)

enum class DType : uint8_t {
#define NEEDLE_ROW(name, type, kind, code, bits) name,
  NEEDLE_DTYPES(NEEDLE_ROW)
#undef NEEDLE_ROW
};

constexpr int kDTypes = 11;

struct DTypeInfo {
  const char* name;
  int64_t itemsize;
  int kind;  // 0 bool, 1 integer, 2 floating
  int dlpack_code;
  int dlpack_bits;
};

inline const DTypeInfo& info(DType t) {
  static const DTypeInfo table[kDTypes] = {
#define NEEDLE_ROW(name, type, kind, code, bits) {#name, sizeof(type), kind, code, bits},
      NEEDLE_DTYPES(NEEDLE_ROW)
#undef NEEDLE_ROW
  };
  return table[static_cast<int>(t)];
}

inline int64_t itemsize(DType t) { return info(t).itemsize; }
inline const char* name(DType t) { return t == DType::boolean ? "bool" : info(t).name; }
inline bool is_floating(DType t) { return info(t).kind == 2; }
inline bool is_half(DType t) { return is_floating(t) && itemsize(t) == 2; }
// int8, uint8, int16, uint16
inline bool is_small_integer(DType t) { return info(t).kind == 1 && itemsize(t) < 4; }
inline bool is_unsigned(DType t) { return info(t).dlpack_code == 1; }
// The dtype in which values of a dtype are computed and accumulated. Integers wrap, so the low 8 or
// 16 bits of an int32 result are the result computed in 8 or 16 bits.
inline DType compute_type(DType t) {
  if (is_small_integer(t)) return DType::int32;
  return is_half(t) ? DType::float32 : t;
}

// Float-valued functions of integers and bools are computed in float64.
inline DType floating_of(DType t) { return is_floating(t) ? t : DType::float64; }
// Sums and products of integers and bools are int64.
inline DType sum_type(DType t) { return is_floating(t) ? t : DType::int64; }

// NumPy's result_type of two arrays. bfloat16, which NumPy lacks, follows float16's rules. float16
// with bfloat16 gives float32, because neither can represent all values of the other.
inline DType promote(DType a, DType b) {
  if (a == b) return a;
  const DTypeInfo &x = info(a), &y = info(b);
  if (x.kind == y.kind) {
    if (x.kind == 1 && is_unsigned(a) != is_unsigned(b)) {
      const DType sign = is_unsigned(a) ? b : a, plain = is_unsigned(a) ? a : b;
      if (itemsize(sign) > itemsize(plain)) return sign;
      return itemsize(plain) == 1 ? DType::int16 : DType::int32;
    }
    if (x.itemsize == y.itemsize) return DType::float32;
    return x.itemsize > y.itemsize ? a : b;
  }
  DType high = x.kind > y.kind ? a : b, low = x.kind > y.kind ? b : a;
  // A half holds every integer of 8 bits, float32 every integer of 16 bits; others need float64.
  if (info(high).kind == 2 && info(low).kind == 1) {
    if (itemsize(low) == 1 || high == DType::float64) return high;
    return itemsize(low) == 2 ? DType::float32 : DType::float64;
  }
  return high;
}

// Returns the dtype of an operation on an array of dtype t and a Python scalar of this kind.
// Scalars are weak: they change the dtype only if their kind is higher.
inline DType promote_scalar(DType t, int kind) {
  if (kind <= info(t).kind) return t;
  return kind == 2 ? DType::float64 : DType::int64;
}

struct TypeError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace needle
