// Memory and strided views of it. A View is valid by construction: every element it can reach lies
// inside its buffer, so kernels check only how shapes and dtypes relate.
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
constexpr int64_t kAlignment = 64;  // one cache line, one AVX-512 register; what TVM asks of inputs

// Becomes Python's MemoryError, with these words.
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
  // Memory of a device. Throws std::bad_alloc when it cannot be had.
  Buffer(int64_t bytes, int device);
  // Foreign memory; `release` runs when the last view is gone and the device's work on it is done.
  Buffer(void* data, int64_t bytes, std::function<void()> release, int device);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  char* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  int device() const { return device_; }
  // The stream of the last work on the memory, on devices that have any; null for foreign memory
  // before the first.
  std::atomic<void*>& stream() const { return stream_; }

  // Writes in place are counted over all buffers, so that one number tells whether a buffer was
  // written after a certain moment: `written` is the count at its last write, 0 if there was none.
  int64_t written() const { return written_.load(std::memory_order_relaxed); }
  void mark_written();

  // What all elements are known to lie between, noted by who fills a buffer that nobody else has
  // seen: the check of an index then needs no look at the device.
  void note_range(const IndexRange& range) { range_ = std::make_unique<IndexRange>(range); }
  // Others write here without our counting it.
  void mark_shared() { shared_.store(true, std::memory_order_relaxed); }
  // Null where nothing is known, or not any more.
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

// Writes in place so far, to any buffer.
int64_t writes();

// Bytes of all buffers of a device that are alive (foreign memory is not ours and does not count),
// and the most there have been since the program began or the peak was reset.
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
  // Throws std::invalid_argument when the layout leaves the buffer or is no layout.
  View(std::shared_ptr<Buffer> buffer, DType dtype, const Dims& shape, const Dims& strides,
       int64_t offset);
  // New uninitialised row-major memory. std::invalid_argument for a bad shape, OutOfMemory.
  static View empty(DType dtype, const Dims& shape, int device);
  // The same with its axes in memory as `order` names them, the slowest first.
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
  // True when some byte may belong to both.
  bool overlaps(const View& other) const;

  // True when two elements may share memory (a stride of 0, or strides that do not nest): writes
  // to them must keep their order.
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
// The axes by falling strides: as they follow one another in memory.
Dims memory_order(const Dims& shape, const Dims& strides);
Dims permuted(const Dims& d, const Dims& order);
// Elements in a shape; std::invalid_argument for negative extents or more bytes than 2^63 - 1.
int64_t checked_size(const Dims& shape, int64_t itemsize);
// NumPy broadcasting; std::invalid_argument naming `what` and both shapes.
Dims broadcast_shapes(const Dims& a, const Dims& b, const char* what);
// Strides of `view` seen under the broadcast `shape` (which must be a broadcast of its shape).
Dims broadcast_strides(const View& view, const Dims& shape);
// `view` under a broadcast shape; std::invalid_argument naming `what`.
View broadcast_to(const View& view, const Dims& shape, const char* what);
// Refuses (std::invalid_argument) operands that are not all on the first one's device.
[[noreturn]] void refuse_devices(const char* what, int a, int b);
inline void same_device(const char* what, const View& first,
                        std::initializer_list<const View*> others) {
  for (const View* v : others)
    if (v != nullptr && v->device() != first.device())
      refuse_devices(what, first.device(), v->device());
}

}  // namespace needle
