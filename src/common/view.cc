#include "common/view.h"

#include <cstdlib>

#include "common/blocks.h"

namespace needle {

namespace {

bool multiply(int64_t a, int64_t b, int64_t* out) { return !__builtin_mul_overflow(a, b, out); }
bool add(int64_t a, int64_t b, int64_t* out) { return !__builtin_add_overflow(a, b, out); }

// Counters; they order no other memory access.
std::atomic<int64_t> g_live[kMaxDevices], g_peak[kMaxDevices], g_writes{0};

void count(int64_t bytes, int device) {
  const int64_t now = g_live[device].fetch_add(bytes, std::memory_order_relaxed) + bytes;
  int64_t peak = g_peak[device].load(std::memory_order_relaxed);
  while (now > peak &&
         !g_peak[device].compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
  }
}

}  // namespace

int64_t writes() { return g_writes.load(std::memory_order_relaxed); }
int64_t memory_allocated(int device) { return g_live[device].load(std::memory_order_relaxed); }
int64_t max_memory_allocated(int device) { return g_peak[device].load(std::memory_order_relaxed); }
void reset_peak_memory(int device) {
  g_peak[device].store(memory_allocated(device), std::memory_order_relaxed);
}

void Buffer::mark_written() {
  written_.store(g_writes.fetch_add(1, std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

// A size of zero still gets an address, because some DLPack consumers refuse null.
Buffer::Buffer(int64_t bytes, int device) : data_(nullptr), bytes_(bytes), device_(device) {
  void* stream;
  data_ = acquire_block(bytes, device, &stream);
  stream_.store(stream, std::memory_order_relaxed);
  count(bytes_, device_);
}

Buffer::Buffer(void* data, int64_t bytes, std::function<void()> release, int device)
    : data_(static_cast<char*>(data)),
      bytes_(bytes),
      release_(std::move(release)),
      device_(device) {}

Buffer::~Buffer() {
  if (release_) {
    release_foreign(std::move(release_), device_, stream_);
  } else {
    release_block(data_, bytes_, device_, stream_);
    count(-bytes_, device_);
  }
}

bool Dims::operator==(const Dims& other) const {
  if (ndim != other.ndim) return false;
  for (int i = 0; i < ndim; ++i)
    if (at[i] != other.at[i]) return false;
  return true;
}

std::string Dims::str() const {
  std::string s = "(";
  for (int i = 0; i < ndim; ++i) s += (i ? ", " : "") + std::to_string(at[i]);
  return s + (ndim == 1 ? ",)" : ")");
}

int64_t checked_size(const Dims& shape, int64_t itemsize) {
  int64_t size = 1, bytes = itemsize;
  bool zero = false;
  for (int i = 0; i < shape.ndim; ++i) {
    if (shape[i] < 0)
      throw std::invalid_argument("shape " + shape.str() + " has a negative extent");
    // Zero extents must not hide an overflow of other extents: strides are computed from them too.
    if (shape[i] == 0) {
      zero = true;
    } else if (!multiply(bytes, shape[i], &bytes)) {
      throw std::invalid_argument("shape " + shape.str() +
                                  " needs more bytes than can be addressed");
    } else {
      size *= shape[i];
    }
  }
  return zero ? 0 : size;
}

Dims compact_strides(const Dims& shape) {
  Dims strides;
  strides.ndim = shape.ndim;
  int64_t step = 1;
  for (int i = shape.ndim - 1; i >= 0; --i) {
    strides[i] = step;
    step *= shape[i];
  }
  return strides;
}

Dims memory_order(const Dims& shape, const Dims& strides) {
  Dims order;
  for (int i = 0; i < shape.ndim; ++i) {
    int at = order.ndim++;
    // An axis of extent 1 keeps its position.
    for (; at > 0 && shape[i] != 1 && strides[static_cast<int>(order[at - 1])] < strides[i]; --at)
      order[at] = order[at - 1];
    order[at] = i;
  }
  return order;
}

Dims permuted(const Dims& d, const Dims& order) {
  Dims out;
  for (int i = 0; i < order.ndim; ++i) out.push(d[static_cast<int>(order[i])]);
  return out;
}

View::View(std::shared_ptr<Buffer> buffer, DType dtype, const Dims& shape, const Dims& strides,
           int64_t offset)
    : buffer_(std::move(buffer)), dtype_(dtype), shape_(shape), strides_(strides), offset_(offset) {
  if (shape.ndim != strides.ndim)
    throw std::invalid_argument("shape " + shape.str() + " and strides " + strides.str() +
                                " differ in length");
  size_ = checked_size(shape, itemsize(dtype));
  int64_t capacity = buffer_->bytes() / itemsize(dtype);
  bool inside = offset >= 0 && offset <= capacity;
  low_ = high_ = offset;
  compact_ = true;
  int64_t step = 1;
  for (int i = shape.ndim - 1; i >= 0 && inside && size_ > 0; --i) {
    if (shape[i] == 1) continue;
    compact_ = compact_ && strides[i] == step;
    step *= shape[i];
    int64_t span = 0;
    inside = multiply(shape[i] - 1, strides[i], &span) &&
             (span < 0 ? add(low_, span, &low_) : add(high_, span, &high_));
  }
  if (size_ == 0) {
    low_ = 0;
    high_ = -1;
    strides_ = compact_strides(shape);  // kernels multiply strides; the given ones are arbitrary
  } else {
    inside = inside && low_ >= 0 && high_ < capacity;
  }
  if (!inside)
    throw std::invalid_argument("view of shape " + shape.str() + ", strides " + strides.str() +
                                ", offset " + std::to_string(offset) + " leaves its buffer of " +
                                std::to_string(capacity) + " elements");
}

View View::empty(DType dtype, const Dims& shape, int device) {
  View v;
  v.dtype_ = dtype;
  v.shape_ = shape;
  v.size_ = checked_size(shape, itemsize(dtype));
  v.strides_ = compact_strides(shape);
  v.compact_ = true;
  v.high_ = v.size_ - 1;
  const int64_t bytes = v.size_ * itemsize(dtype);
  try {
    v.buffer_ = std::make_shared<Buffer>(bytes, device);
  } catch (const std::bad_alloc&) {
    throw OutOfMemory("a " + std::string(name(dtype)) + " array of shape " + shape.str() +
                      " needs " + std::to_string(bytes) + " bytes, " + out_of_memory_note(device));
  }
  return v;
}

View View::empty(DType dtype, const Dims& shape, const Dims& order, int device) {
  View v = empty(dtype, shape, device);
  int64_t step = 1;
  v.compact_ = true;
  int64_t row_major = 1;
  for (int i = shape.ndim - 1; i >= 0; --i) {
    v.strides_[static_cast<int>(order[i])] = step;
    step *= shape[static_cast<int>(order[i])];
  }
  for (int i = shape.ndim - 1; i >= 0; --i) {
    v.compact_ = v.compact_ && (shape[i] == 1 || v.strides_[i] == row_major);
    row_major *= shape[i];
  }
  return v;
}

bool View::overlaps(const View& other) const {
  if (size_ == 0 || other.size_ == 0) return false;
  if (device() != other.device()) return false;
  const char *a = buffer_->data(), *b = other.buffer_->data();
  int64_t s = itemsize(dtype_), t = itemsize(other.dtype_);
  return a + low_ * s < b + (other.high_ + 1) * t && b + other.low_ * t < a + (high_ + 1) * s;
}

bool View::self_overlapping() const {
  int64_t reach = 0;
  Dims order;
  for (int i = 0; i < ndim(); ++i)
    if (shape_[i] > 1) order.push(i);
  for (int done = 0; done < order.ndim; ++done) {
    int best = done;
    for (int j = done + 1; j < order.ndim; ++j)
      if (std::llabs(strides_[order[j]]) < std::llabs(strides_[order[best]])) best = j;
    std::swap(order[done], order[best]);
    int64_t stride = std::llabs(strides_[order[done]]);
    if (stride <= reach) return true;
    reach += stride * (shape_[order[done]] - 1);
  }
  return false;
}

Dims broadcast_shapes(const Dims& a, const Dims& b, const char* what) {
  if (a == b) return a;
  const Dims &longer = a.ndim >= b.ndim ? a : b, &shorter = a.ndim >= b.ndim ? b : a;
  Dims out = longer;
  int lead = longer.ndim - shorter.ndim;
  for (int i = 0; i < shorter.ndim; ++i) {
    int64_t x = longer[lead + i], y = shorter[i];
    if (x != y && x != 1 && y != 1)
      throw std::invalid_argument(std::string(what) + ": shapes " + a.str() + " and " + b.str() +
                                  " do not broadcast together");
    out[lead + i] = x == 1 ? y : x;
  }
  return out;
}

Dims broadcast_strides(const View& view, const Dims& shape) {
  Dims strides;
  strides.ndim = shape.ndim;
  int lead = shape.ndim - view.ndim();
  for (int i = 0; i < shape.ndim; ++i)
    strides[i] = i < lead || view.shape()[i - lead] != shape[i] ? 0 : view.strides()[i - lead];
  return strides;
}

View broadcast_to(const View& view, const Dims& shape, const char* what) {
  if (view.shape() == shape) return view;
  bool fits = view.ndim() <= shape.ndim;
  for (int i = 0; fits && i < view.ndim(); ++i) {
    int64_t n = view.shape()[i];
    fits = n == 1 || n == shape[shape.ndim - view.ndim() + i];
  }
  if (!fits)
    throw std::invalid_argument(std::string(what) + ": shape " + view.shape().str() +
                                " does not broadcast to " + shape.str());
  return View(view.buffer(), view.dtype(), shape, broadcast_strides(view, shape), view.offset());
}

void refuse_devices(const char* what, int a, int b) {
  throw std::invalid_argument(std::string(what) + ": operands are on devices " + std::to_string(a) +
                              " and " + std::to_string(b));
}

}  // namespace needle
