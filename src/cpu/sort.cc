#include <algorithm>
#include <cstring>
#include <vector>

#include "common/functions.h"
#include "cpu/lines.h"
#include "cpu/scan.h"

namespace needle {

namespace {

template <size_t kBytes>
using Unsigned =
    std::conditional_t<kBytes == 1, uint8_t, std::conditional_t<kBytes == 4, uint32_t, uint64_t>>;

// Returns an unsigned key with the order of the values: the bits of a float below 0 grow with its
// magnitude. Both zeros have the same key, and all NaNs have the largest.
template <class T>
Unsigned<sizeof(T)> key_of(T value, bool descending) {
  using K = Unsigned<sizeof(T)>;
  constexpr K kSign = K(1) << (8 * sizeof(T) - 1);
  if (value == T(0)) value = T(0);  // not -0
  K bits;
  std::memcpy(&bits, &value, sizeof bits);
  if (std::is_floating_point<T>::value)
    bits = value != value ? K(~K(0)) : (bits & kSign) != 0 ? K(~bits) : K(bits | kSign);
  else if (std::is_signed<T>::value)
    bits ^= kSign;
  return descending ? K(~bits) : bits;
}

template <class K, class P>
struct Keyed {
  K key;
  P place;
};

constexpr int64_t kFew = 48;  // up to this many elements are inserted one by one

// Writes the first k of n elements, in order, to `line`; among equal elements the earlier come
// first. An element that is not among the best so far is only compared with the last of them.
template <class E>
void insert_all(E* line, int64_t n, int64_t k) {
  for (int64_t i = 1; i < n; ++i) {
    const E element = line[i];
    int64_t to = i < k ? i : k - 1;
    if (i >= k && !(element.key < line[to].key)) continue;
    for (; to > 0 && element.key < line[to - 1].key; --to) line[to] = line[to - 1];
    line[to] = element;
  }
}

// Sorts by each byte of the keys in turn, the lowest first; returns the array that has the result.
template <class E>
E* sort_by_bytes(E* line, E* spare, int64_t n) {
  constexpr size_t kBytes = sizeof(E::key);
  int64_t counts[kBytes][256] = {};
  for (int64_t i = 0; i < n; ++i)
    for (size_t byte = 0; byte < kBytes; ++byte) ++counts[byte][line[i].key >> (8 * byte) & 255];
  for (size_t byte = 0; byte < kBytes; ++byte) {
    int64_t* count = counts[byte];
    if (count[line[0].key >> (8 * byte) & 255] == n) continue;  // this byte is the same in all keys
    int64_t before = 0;
    for (int i = 0; i < 256; ++i) {
      const int64_t own = count[i];
      count[i] = before;
      before += own;
    }
    for (int64_t i = 0; i < n; ++i) spare[count[line[i].key >> (8 * byte) & 255]++] = line[i];
    std::swap(line, spare);
  }
  return line;
}

template <class T, class P>
void sort_lines(const Lines& l, const T* from, T* to, int64_t* where, bool descending, int64_t k) {
  using E = Keyed<Unsigned<sizeof(T)>, P>;
  const int64_t grain = std::max<int64_t>(1, kLineGrain / 8 / l.n);
  const bool few = k <= kFew && (k < l.n || l.n <= kFew);
  parallel_for(l.outer * l.inner, grain, [&](int64_t begin, int64_t end) {
    std::vector<E> memory(static_cast<size_t>(few ? l.n : 2 * l.n));
    for (int64_t row = begin; row < end; ++row) {
      const int64_t first = row / l.inner * l.n * l.inner + row % l.inner;
      E* line = memory.data();
      for (int64_t i = 0; i < l.n; ++i)
        line[i] = {key_of(from[first + i * l.inner], descending), static_cast<P>(i)};
      if (few)
        insert_all(line, l.n, k);
      else
        line = sort_by_bytes(line, line + l.n, l.n);
      const int64_t out = row / l.inner * k * l.inner + row % l.inner;
      for (int64_t i = 0; i < k; ++i) {
        const int64_t place = static_cast<int64_t>(line[i].place);
        to[out + i * l.inner] = from[first + place * l.inner];
        where[out + i * l.inner] = place;
      }
    }
  });
}

}  // namespace

std::pair<View, View> topk(const View& given, int axis, bool descending, int64_t k) {
  const View x = nd::compact(given);
  const Lines l(x, axis, "sort");
  if (k < 0 || k > l.n) throw std::invalid_argument("topk: k is out of range");
  Dims shape;
  for (int i = 0; i < x.ndim(); ++i) shape.push(i == axis ? k : x.shape()[i]);
  View values = View::empty(x.dtype(), shape, x.device());
  View places = View::empty(DType::int64, shape, x.device());
  if (values.size() == 0) return {values, places};
  with_number(x.dtype(), "sort", [&](auto zero) {
    using T = decltype(zero);
    const T* from = reinterpret_cast<const T*>(x.data());
    T* to = reinterpret_cast<T*>(values.data());
    int64_t* where = reinterpret_cast<int64_t*>(places.data());
    if (l.n <= INT32_MAX)
      sort_lines<T, int32_t>(l, from, to, where, descending, k);
    else
      sort_lines<T, int64_t>(l, from, to, where, descending, k);
  });
  return {values, places};
}

std::pair<View, View> sort(const View& x, int axis, bool descending) {
  const Lines l(x, axis, "sort");
  return topk(x, axis, descending, l.n);
}

View searchsorted(const View& lines, const View& values, bool right) {
  const int ndim = lines.ndim();
  bool fits = ndim > 0 && lines.dtype() == values.dtype() && (ndim == 1 || ndim == values.ndim());
  for (int i = 0; fits && i + 1 < ndim; ++i) fits = lines.shape()[i] == values.shape()[i];
  if (!fits)
    throw std::invalid_argument(
        "searchsorted: x must have one axis, or the values' axes but for the last, "
        "and the values' dtype");
  const View x = nd::compact(lines), wanted = nd::compact(values);
  View out = View::empty(DType::int64, wanted.shape(), wanted.device());
  if (out.size() == 0) return out;
  with_number(x.dtype(), "searchsorted", [&](auto zero) {
    using T = decltype(zero);
    const T *from = reinterpret_cast<const T*>(x.data()), *v = reinterpret_cast<T*>(wanted.data());
    int64_t* to = reinterpret_cast<int64_t*>(out.data());
    const int64_t n = x.shape()[ndim - 1];
    const int64_t in_line = ndim == 1 ? out.size() : wanted.shape()[ndim - 1];
    parallel_for(out.size(), 1024, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const T* line = from + i / in_line * n;
        int64_t low = 0, high = n;
        while (low < high) {
          const int64_t middle = (low + high) / 2;
          const T a = line[middle], b = v[i];
          const bool before = right ? a <= b || b != b : a < b || (b != b && a == a);
          (before ? low : high) = before ? middle + 1 : middle;
        }
        to[i] = low;
      }
    });
  });
  return out;
}

}  // namespace needle
