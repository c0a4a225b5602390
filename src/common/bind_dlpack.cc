#include "common/bind_dlpack.h"

#include <algorithm>
#include <memory>

#include "common/device.h"

namespace py = pybind11;

namespace needle {

namespace {

constexpr const char* kOld = "dltensor";
constexpr const char* kNew = "dltensor_versioned";

// The contents of an exported capsule: the memory, and storage for shape and strides.
template <class Managed>
struct Export {
  Managed managed{};
  std::shared_ptr<Buffer> buffer;
  Dims shape, strides;
  int64_t stream;
};

template <class Managed>
Export<Managed>* make_export(const View& view, int64_t stream) {
  device::hand_over(*view.buffer(), stream);
  view.buffer()->mark_shared();
  auto* e = new Export<Managed>;
  e->buffer = view.buffer();
  e->stream = stream;
  e->shape = view.shape();
  e->strides = view.strides();
  dlpack::Tensor& t = e->managed.tensor;
  t.data = view.buffer()->data();
  t.device = device::dlpack_device(*view.buffer());
  t.ndim = view.ndim();
  const DTypeInfo& type = info(view.dtype());
  t.dtype = {static_cast<uint8_t>(type.dlpack_code), static_cast<uint8_t>(type.dlpack_bits), 1};
  t.shape = e->shape.at.data();
  t.strides = e->strides.at.data();
  // Consumers disagree about byte_offset, so the pointer carries the offset.
  t.data = view.data();
  t.byte_offset = 0;
  e->managed.context = e;
  e->managed.deleter = [](Managed* m) {
    auto* own = static_cast<Export<Managed>*>(m->context);
    device::taken_back(*own->buffer, own->stream);
    delete own;
  };
  return e;
}

// Runs when a capsule dies: frees our tensor unless a consumer has taken it over.
template <class Managed>
void capsule_destructor(PyObject* capsule, const char* name) {
  if (!PyCapsule_IsValid(capsule, name)) return;
  auto* m = static_cast<Managed*>(PyCapsule_GetPointer(capsule, name));
  if (m != nullptr && m->deleter != nullptr) m->deleter(m);
}

[[noreturn]] void refuse(const std::string& why) {
  PyErr_SetString(PyExc_BufferError, ("from_dlpack: " + why).c_str());
  throw py::error_already_set();
}

// Makes a view of a foreign tensor; `release` returns the tensor to its owner.
View import_tensor(const dlpack::Tensor& t, std::function<void()> release) {
  std::string why;
  const std::optional<int> on = device::device_of_dlpack(t.device, &why);
  if (!on) refuse(why);
  DType dtype = dtype_of_dlpack(t.dtype);
  const int64_t size = itemsize(dtype);
  if (t.ndim < 0 || t.ndim > kMaxDims)
    refuse(std::to_string(t.ndim) + " dimensions are more than " + std::to_string(kMaxDims));
  Dims shape, strides;
  for (int i = 0; i < t.ndim; ++i) shape.push(t.shape[i]);
  int64_t elements = checked_size(shape, size);
  if (t.strides == nullptr) {
    strides = compact_strides(shape);
  } else {
    for (int i = 0; i < t.ndim; ++i) strides.push(t.strides[i]);
  }
  // The buffer spans exactly the tensor's elements; with negative strides it begins before `data`.
  int64_t low = 0, high = 0;
  for (int i = 0; i < t.ndim && elements > 0; ++i) {
    int64_t span;
    if (__builtin_mul_overflow(shape[i] - 1, strides[i], &span) ||
        __builtin_add_overflow(span < 0 ? low : high, span, span < 0 ? &low : &high))
      refuse("strides overflow");
  }
  int64_t bytes;
  if (__builtin_sub_overflow(high, low, &bytes) || __builtin_mul_overflow(bytes + 1, size, &bytes))
    refuse("strides overflow");
  char* data = static_cast<char*>(t.data) + t.byte_offset;
  if (elements == 0) return View::empty(dtype, shape, *on);
  if (t.data == nullptr) refuse("the tensor's data pointer is null");
  if (reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(size) != 0)
    refuse("the tensor's memory is not aligned to its element type");
  auto buffer = std::make_shared<Buffer>(data + low * size, bytes, std::move(release), *on);
  buffer->mark_shared();
  device::take_over(*buffer);
  return View(std::move(buffer), dtype, shape, strides, -low);
}

// Makes a view that owns a managed tensor.
template <class Managed>
View owner_of(Managed* m) {
  // The owner's deleter may need the interpreter; a view may die on any thread, or at exit.
  auto release = [m] {
    if (m->deleter == nullptr || !Py_IsInitialized()) return;
    const py::gil_scoped_acquire gil;
    // The view may be destroyed while a Python error is set, and the deleter may run Python.
    const py::error_scope kept;
    m->deleter(m);
  };
  View view = import_tensor(m->tensor, release);
  if (view.size() == 0) release();
  return view;
}

template <class Managed>
View take_over(const py::object& capsule, const char* name, const char* used) {
  auto* m = static_cast<Managed*>(PyCapsule_GetPointer(capsule.ptr(), name));
  if (m == nullptr) throw py::error_already_set();
  View view = owner_of(m);
  PyCapsule_SetName(capsule.ptr(), used);
  return view;
}

void check_usable(const dlpack::ManagedVersioned* m) {
  if (m->version.major != 1)
    refuse("DLPack version " + std::to_string(m->version.major) + " is not known");
  if (m->flags & dlpack::kReadOnly) refuse("the tensor's memory is read-only; copy it first");
}

}  // namespace

DType dtype_of_dlpack(const dlpack::DataType& t) {
  if (t.lanes == 1)
    for (int i = 0; i < kDTypes; ++i) {
      const DTypeInfo& row = info(static_cast<DType>(i));
      if (row.dlpack_code == t.code && row.dlpack_bits == t.bits) return static_cast<DType>(i);
    }
  throw TypeError("from_dlpack: needle has no dtype for element type (code " +
                  std::to_string(t.code) + ", " + std::to_string(t.bits) + " bits, " +
                  std::to_string(t.lanes) + " lanes)");
}

dlpack::ManagedVersioned* export_view(const View& view, int64_t stream) {
  auto* e = make_export<dlpack::ManagedVersioned>(view, stream);
  e->managed.version = {1, 0};
  return &e->managed;
}

View import_view(dlpack::ManagedVersioned* tensor) {
  check_usable(tensor);
  return owner_of(tensor);
}

py::capsule to_dlpack(const View& view, bool versioned, int64_t stream) {
  if (versioned) {
    return py::capsule(export_view(view, stream), kNew,
                       [](PyObject* c) { capsule_destructor<dlpack::ManagedVersioned>(c, kNew); });
  }
  auto* e = make_export<dlpack::Managed>(view, stream);
  return py::capsule(&e->managed, kOld,
                     [](PyObject* c) { capsule_destructor<dlpack::Managed>(c, kOld); });
}

View from_dlpack(py::object capsule) {
  if (PyCapsule_IsValid(capsule.ptr(), kNew)) {
    auto* m = static_cast<dlpack::ManagedVersioned*>(PyCapsule_GetPointer(capsule.ptr(), kNew));
    check_usable(m);
    return take_over<dlpack::ManagedVersioned>(capsule, kNew, "used_dltensor_versioned");
  }
  if (!PyCapsule_IsValid(capsule.ptr(), kOld))
    throw TypeError("from_dlpack: not an unused DLPack capsule");
  return take_over<dlpack::Managed>(capsule, kOld, "used_dltensor");
}

}  // namespace needle
