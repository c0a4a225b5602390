// Reads or writes elements, each at its own position along one axis.
#define NEEDLE_ISA along
#include "common/functors.h"

#include <atomic>
#include <cstdlib>

#include "common/device.h"
#include "cpu/kernel_table.h"
#include "threads/thread_pool.h"

namespace needle {
namespace device {

namespace {

using namespace along;

template <class S>
struct Type {
  using type = S;
};

template <class F>
void with_storage(DType t, F&& fn) {
  switch (t) {
    case DType::float32:
      return fn(Type<float>());
    case DType::float64:
      return fn(Type<double>());
    case DType::int32:
      return fn(Type<int32_t>());
    case DType::int64:
      return fn(Type<int64_t>());
    case DType::boolean:
      return fn(Type<Bool>());
    case DType::float16:
      return fn(Type<Float16>());
    case DType::bfloat16:
      return fn(Type<Bfloat16>());
    case DType::int8:
      return fn(Type<int8_t>());
    case DType::uint8:
      return fn(Type<uint8_t>());
    case DType::int16:
      return fn(Type<int16_t>());
    case DType::uint16:
      return fn(Type<uint16_t>());
  }
}

template <class F>
void with_bits(DType t, F&& fn) {
  switch (itemsize(t)) {
    case 1:
      return fn(Type<uint8_t>());
    case 2:
      return fn(Type<uint16_t>());
    case 4:
      return fn(Type<uint32_t>());
    default:
      return fn(Type<uint64_t>());
  }
}

template <class F>
void with_index(DType t, F&& fn) {
  if (t == DType::int32) return fn(Type<int32_t>());
  return fn(Type<int64_t>());
}

// The new value of an element when another is put in its place.
struct Set {
  template <class C>
  static C at(C, C put) {
    return put;
  }
};

// The extent of an axis, and its step in memory.
struct Axis {
  int64_t extent, step;

  // Returns false for a position outside of the axis.
  template <class I>
  bool find(I index, int64_t* offset) const {
    const int64_t at = index < 0 ? index + extent : index;
    *offset = at * step;
    return static_cast<uint64_t>(at) < static_cast<uint64_t>(extent);
  }
};

Dims with(const Dims& dims, int64_t axis, int64_t value) {
  Dims out = dims;
  out[static_cast<int>(axis)] = value;
  return out;
}

Axis axis_of(const View& x, int64_t axis) {
  return {x.shape()[static_cast<int>(axis)], x.strides()[static_cast<int>(axis)]};
}

// Returns whether all positions are inside; elements with positions outside are not written.
template <class S, class I>
bool take_run(Axis along, const I* index, int64_t si, const S* x, int64_t sx, S* out, int64_t so,
              int64_t n) {
  bool good = true;
  for (int64_t j = 0; j < n; ++j) {
    int64_t at;
    if (along.find(index[j * si], &at))
      out[j * so] = x[j * sx + at];
    else
      good = false;
  }
  return good;
}

// The same for adjacent elements.
template <class S, class I>
bool take_line(int64_t extent, const I* __restrict index, const S* __restrict x, S* __restrict out,
               int64_t n) {
  bool good = true;
  for (int64_t j = 0; j < n; ++j) {
    const int64_t at = index[j], place = at + (at < 0 ? extent : 0);
    if (static_cast<uint64_t>(place) < static_cast<uint64_t>(extent))
      out[j] = x[place];
    else
      good = false;
  }
  return good;
}

}  // namespace

void take_along(const View& x, const View& index, int64_t axis, const View& out) {
  const Axis along = axis_of(x, axis);
  const Loop<3> loop(index.shape(), {index.strides(), with(x.strides(), axis, 0), out.strides()});
  const int64_t si = loop.inner(0), sx = loop.inner(1), so = loop.inner(2);
  std::atomic<bool> outside{false};
  with_bits(x.dtype(), [&](auto type) {
    using S = typename decltype(type)::type;
    with_index(index.dtype(), [&](auto index_type) {
      using I = typename decltype(index_type)::type;
      const S* from = reinterpret_cast<const S*>(x.data());
      const I* where = reinterpret_cast<const I*>(index.data());
      S* to = reinterpret_cast<S*>(out.data());
      parallel_for(loop.total, kGrain, [&](int64_t begin, int64_t end) {
        bool good = true;
        loop.run(begin, end, [&](const int64_t* offset, int64_t n) {
          const I* at = where + offset[0];
          const S* x_run = from + offset[1];
          S* out_run = to + offset[2];
          const bool plain = si == 1 && so == 1 && sx == 0 && along.step == 1;
          good &= plain ? take_line(along.extent, at, x_run, out_run, n)
                        : take_run(along, at, si, x_run, sx, out_run, so, n);
        });
        if (!good) outside = true;
      });
    });
  });
  if (outside) positions(index, along.extent, "take_along");  // throws
}

void put_along(const View& to, const View& index, const View& from, int64_t axis, Put how) {
  const Axis along = axis_of(to, axis);
  const int d = static_cast<int>(axis);
  // The threads divide the lines along the axis, so the elements of a line are put in order.
  const int64_t length = index.shape()[d], si = index.strides()[d], sf = from.strides()[d];
  const Loop<3> rest(
      with(index.shape(), axis, 1),
      {with(index.strides(), axis, 0), with(to.strides(), axis, 0), with(from.strides(), axis, 0)});
  // Work on rows of neighbouring lines if these are closer together than the elements of a line.
  const bool rows = rest.shape[rest.ndim - 1] >= 8 && std::abs(sf) > std::abs(rest.inner(2));
  std::atomic<bool> outside{false};
  auto typed = [&](auto type, auto index_type, auto put) {
    using S = typename decltype(type)::type;
    using I = typename decltype(index_type)::type;
    using F = decltype(put);
    S* target = reinterpret_cast<S*>(to.data());
    const I* where = reinterpret_cast<const I*>(index.data());
    const S* source = reinterpret_cast<const S*>(from.data());
    auto run = [&](const I* i, int64_t i_step, S* t, int64_t t_step, const S* s, int64_t s_step,
                   int64_t n) {
      bool good = true;
      for (int64_t j = 0; j < n; ++j) {
        int64_t at;
        if (along.find(i[j * i_step], &at)) {
          S& element = t[j * t_step + at];
          element = Io<S>::store(F::at(Io<S>::load(element), Io<S>::load(s[j * s_step])));
        } else {
          good = false;
        }
      }
      return good;
    };
    parallel_for(rest.total, std::max<int64_t>(rows ? 64 : 1, kGrain / length),
                 [&](int64_t begin, int64_t end) {
                   bool good = true;
                   for (int64_t k = 0; k < (rows ? length : 1); ++k)
                     rest.run(begin, end, [&](const int64_t* offset, int64_t n) {
                       const I* i = where + offset[0] + k * si;
                       S* t = target + offset[1];
                       const S* s = source + offset[2] + k * sf;
                       if (rows) {
                         good &= run(i, rest.inner(0), t, rest.inner(1), s, rest.inner(2), n);
                         return;
                       }
                       for (int64_t j = 0; j < n; ++j)
                         good &= run(i + j * rest.inner(0), si, t + j * rest.inner(1), 0,
                                     s + j * rest.inner(2), sf, length);
                     });
                   if (!good) outside = true;
                 });
  };
  with_index(index.dtype(), [&](auto index_type) {
    if (how == Put::set)
      return with_bits(to.dtype(), [&](auto type) { typed(type, index_type, Set()); });
    with_storage(to.dtype(), [&](auto type) {
      if (how == Put::add) typed(type, index_type, along::fn::add());
      if (how == Put::max) typed(type, index_type, along::fn::maximum());
      if (how == Put::min) typed(type, index_type, along::fn::minimum());
    });
  });
  if (outside) positions(index, along.extent, "put_along");  // throws
}

}  // namespace device
}  // namespace needle
