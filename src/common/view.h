// Memory and strided views of memory. A View is valid by construction: all of its elements lie
// inside its buffer, so kernels check only shapes and dtypes.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <new>
#include <string>

#include "common/dtype.h"

namespace needle {

constexpr int kMaxDims = 16;
constexpr int64_t kAlignment = 64;  // a cache line, an AVX-512 register, TVM's rule for inputs

// Becomes Python's MemoryError with this message.
class OutOfMemory : public std::bad_alloc {
 public:
  explicit OutOfMemory(std::string what)
      : what_(std::make_shared<const std::string>(std::move(what))) {}
  const char* what() const noexcept override { return what_->c_str(); }

 private:
  std::shared_ptr<const std::string> what_;  // an exception's copy must not throw
};

struct IndexRange {
  DType dtype;
  int64_t low, high;
};

class Buffer {
 public:
  // Allocates new memory of a device. Throws std::bad_alloc on failure.
  Buffer(int64_t bytes, int device);
  // Wraps foreign memory; `release` runs when the last view is gone and the device's work on it is
  // done.
  Buffer(void* data, int64_t bytes, std::function<void()> release, int device);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  char* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  int device() const { return device_; }
  // The stream of the last work on the memory, on devices with streams; null for foreign memory
  // before its first work.
  std::atomic<void*>& stream() const { return stream_; }

  // Writes in place are counted over all buffers, so one number shows whether a buffer was written
  // after a given moment: `written` is the count at the buffer's last write, 0 if there was none.
  int64_t written() const { return written_.load(std::memory_order_relaxed); }
  void mark_written();

  // Known bounds of all elements, set by code that fills a new buffer; with them, checking an index
  // does not access the device.
  void note_range(const IndexRange& range) { range_ = std::make_unique<IndexRange>(range); }
  // Notes that others may write to this memory; their writes are not counted.
  void mark_shared() { shared_.store(true, std::memory_order_relaxed); }
  // Null if no bounds are known, or if they no longer hold.
  const IndexRange* range() const {
    const bool valid = range_ && written() == 0 && !shared_.load(std::memory_order_relaxed);
    return valid ? range_.get() : nullptr;
  }

 private:
  char* data_;
  int64_t bytes_;
  std::function<void()> release_;
  std::atomic<int64_t> written_{0};
  mutable std::atomic<void*> stream_{nullptr};
  std::atomic<bool> shared_{false};
  int device_;
  std::unique_ptr<const IndexRange> range_;
};

// The number of writes in place so far, to any buffer.
int64_t writes();

// The bytes of all live buffers of a device (foreign memory does not count), and their peak since
// the program began or the peak was reset.
int64_t memory_allocated(int device);
int64_t max_memory_allocated(int device);
void reset_peak_memory(int device);

struct Dims {
  int ndim = 0;
  std::array<int64_t, kMaxDims> at;

  Dims() = default;
  Dims(const Dims& other) { *this = other; }
  Dims& operator=(const Dims& other) {
    ndim = other.ndim;
    for (int i = 0; i < ndim; ++i) at[i] = other.at[i];
    return *this;
  }
  int64_t& operator[](int i) { return at[i]; }
  int64_t operator[](int i) const { return at[i]; }
  void push(int64_t value) { at[ndim++] = value; }  // the caller keeps ndim <= kMaxDims
  bool operator==(const Dims& other) const;
  bool operator!=(const Dims& other) const { return !(*this == other); }
  std::string str() const;
};

class View {
 public:
  // Throws std::invalid_argument if the layout is invalid or leaves the buffer.
  View(std::shared_ptr<Buffer> buffer, DType dtype, const Dims& shape, const Dims& strides,
       int64_t offset);
  // A view of new, uninitialised, row-major memory. Throws std::invalid_argument for a bad shape,
  // and OutOfMemory.
  static View empty(DType dtype, const Dims& shape, int device);
  // The same with its axes in memory in the given `order`, slowest first.
  static View empty(DType dtype, const Dims& shape, const Dims& order, int device);

  const std::shared_ptr<Buffer>& buffer() const { return buffer_; }
  DType dtype() const { return dtype_; }
  const Dims& shape() const { return shape_; }
  const Dims& strides() const { return strides_; }
  int64_t offset() const { return offset_; }
  int64_t size() const { return size_; }
  int ndim() const { return shape_.ndim; }
  int device() const { return buffer_->device(); }
  bool is_compact() const { return compact_; }
  char* data() const { return buffer_->data() + offset_ * itemsize(dtype_); }
  // Whether both views may contain the same byte.
  bool overlaps(const View& other) const;

  // Whether two elements may share memory (a stride of 0, or strides that do not nest); writes to
  // such elements must keep their order.
  bool self_overlapping() const;

 private:
  View() = default;
  std::shared_ptr<Buffer> buffer_;
  DType dtype_;
  bool compact_;
  Dims shape_, strides_;
  int64_t offset_ = 0, size_ = 0;
  int64_t low_ = 0, high_ = -1;  // first and last reachable element of the buffer
};

Dims compact_strides(const Dims& shape);
// The axes by descending stride, which is their order in memory.
Dims memory_order(const Dims& shape, const Dims& strides);
Dims permuted(const Dims& d, const Dims& order);
// Returns the number of elements of a shape. Throws std::invalid_argument for negative extents or
// more bytes than 2^63 - 1.
int64_t checked_size(const Dims& shape, int64_t itemsize);
// Broadcasts like NumPy. Throws std::invalid_argument that names `what` and both shapes.
Dims broadcast_shapes(const Dims& a, const Dims& b, const char* what);
// The strides of `view` under `shape`, to which its shape must broadcast.
Dims broadcast_strides(const View& view, const Dims& shape);
// Returns `view` under a broadcast shape. Throws std::invalid_argument that names `what`.
View broadcast_to(const View& view, const Dims& shape, const char* what);
// Throws std::invalid_argument unless all operands are on the device of the first.
[[noreturn]] void refuse_devices(const char* what, int a, int b);
inline void same_device(const char* what, const View& first,
                        std::initializer_list<const View*> others) {
  for (const View* v : others)
    if (v != nullptr && v->device() != first.device())
      refuse_devices(what, first.device(), v->device());
}

}  // namespace needle
