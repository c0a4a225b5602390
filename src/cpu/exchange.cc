#include "cpu/exchange.h"

#include "common/bind_dlpack.h"
#include "common/device.h"

namespace py = pybind11;

namespace needle {

namespace {

// The names are never freed: other libraries may hold a table as long as the process lives.
struct Names {
  PyObject* data = PyUnicode_InternFromString("_data");
  PyObject* node = PyUnicode_InternFromString("_node");
  PyObject* view = PyUnicode_InternFromString("view");
  PyObject* device = PyUnicode_InternFromString("device");
  PyObject* trace = PyUnicode_InternFromString("trace");
  PyObject* realized = PyUnicode_InternFromString("realize_cached_data");
};
const Names* g_names = nullptr;
PyTypeObject* g_array_class = nullptr;
PyTypeObject* g_tensor_class = nullptr;
PyObject* g_device = nullptr;
PyObject* g_state = nullptr;

// Runs a function that may throw; returns 0, or -1 with a Python exception set.
template <class F>
int guarded(F&& f) noexcept {
  try {
    f();
    return 0;
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const std::bad_alloc& error) {
    PyErr_SetString(PyExc_MemoryError, error.what());
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_BufferError, error.what());
  }
  return -1;
}

py::object stolen(PyObject* object) {
  if (object == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(object);
}

py::object attribute(PyObject* object, PyObject* name) {
  return stolen(PyObject_GetAttr(object, name));
}

// The `view` of an NDArray, or of a Tensor's array. A Tensor without a value, or with a value that
// must not be read while tracing, raises its own error.
template <bool kTensor>
py::object view_of(PyObject* object) {
  if (!kTensor) return attribute(object, g_names->view);
  py::object array = attribute(object, g_names->data);
  if (array.is_none() || !attribute(g_state, g_names->trace).is_none())
    array = attribute(object, g_names->realized)();
  return attribute(array.ptr(), g_names->view);
}

template <bool kTensor>
int from_object(void* object, dlpack::ManagedVersioned** out) {
  return guarded([&] {
    const py::handle self(static_cast<PyObject*>(object));
    const py::object view = view_of<kTensor>(self.ptr());
    py::detail::make_caster<View> own;
    if (own.load(view, false)) {
      *out = export_view(py::detail::cast_op<const View&>(own), 0);
      return;
    }
    // The array is on another device, or there is none: __dlpack__ handles it or raises the error.
    const py::object capsule =
        self.attr("__dlpack__")(py::arg("max_version") = py::make_tuple(1, 0));
    constexpr const char* kName = "dltensor_versioned";
    void* tensor = PyCapsule_GetPointer(capsule.ptr(), kName);
    if (tensor == nullptr) throw py::error_already_set();
    PyCapsule_SetName(capsule.ptr(), "used_dltensor_versioned");
    *out = static_cast<dlpack::ManagedVersioned*>(tensor);
  });
}

template <bool kTensor>
int view_object(void* object, dlpack::Tensor* out) {
  return guarded([&] {
    const py::object held = view_of<kTensor>(static_cast<PyObject*>(object));
    py::detail::make_caster<View> own;
    if (!own.load(held, false))
      throw std::invalid_argument("has no memory of the native CPU device");
    const View& view = py::detail::cast_op<const View&>(own);
    const DTypeInfo& type = info(view.dtype());
    out->data = view.data();
    out->device = {dlpack::kCpu, 0};
    out->ndim = view.ndim();
    out->dtype = {static_cast<uint8_t>(type.dlpack_code), static_cast<uint8_t>(type.dlpack_bits),
                  1};
    out->shape = const_cast<int64_t*>(view.shape().at.data());
    out->strides = const_cast<int64_t*>(view.strides().at.data());
    out->byte_offset = 0;
  });
}

// Makes an object of a class without calling its constructor, and sets two attributes.
py::object made(PyTypeObject* cls, PyObject* first, PyObject* one, PyObject* second,
                PyObject* two) {
  py::object self = stolen(cls->tp_alloc(cls, 0));
  if (PyObject_SetAttr(self.ptr(), first, one) != 0 ||
      PyObject_SetAttr(self.ptr(), second, two) != 0)
    throw py::error_already_set();
  return self;
}

template <bool kTensor>
int to_object(dlpack::ManagedVersioned* tensor, void** out) {
  const int code = guarded([&] {
    View imported = import_view(tensor);
    tensor = nullptr;  // the view owns it
    const py::object view = py::cast(std::move(imported));
    py::object array = made(g_array_class, g_names->device, g_device, g_names->view, view.ptr());
    if (kTensor) array = made(g_tensor_class, g_names->data, array.ptr(), g_names->node, Py_None);
    *out = array.release().ptr();
  });
  if (code != 0 && tensor != nullptr && tensor->deleter != nullptr) {
    const py::error_scope kept;  // the owner may run Python code
    tensor->deleter(tensor);
  }
  return code;
}

int allocate(dlpack::Tensor* like, dlpack::ManagedVersioned** out, void* context,
             void (*fail)(void*, const char*, const char*)) {
  try {
    std::string why;
    if (!device::device_of_dlpack(like->device, &why)) throw std::invalid_argument(why);
    if (like->ndim < 0 || like->ndim > kMaxDims)
      throw std::invalid_argument(std::to_string(like->ndim) + " dimensions are more than " +
                                  std::to_string(kMaxDims));
    Dims shape;
    for (int i = 0; i < like->ndim; ++i) shape.push(like->shape[i]);
    *out = export_view(View::empty(dtype_of_dlpack(like->dtype), shape, 0), 0);
    return 0;
  } catch (const std::bad_alloc& error) {
    fail(context, "MemoryError", error.what());
  } catch (const std::exception& error) {
    fail(context, "BufferError", error.what());
  }
  return -1;
}

int current_stream(int32_t, int32_t, void** out) {
  *out = nullptr;
  return 0;
}

template <bool kTensor>
const dlpack::ExchangeTable kTable = {{1, 3},
                                      nullptr,
                                      allocate,
                                      from_object<kTensor>,
                                      to_object<kTensor>,
                                      view_object<kTensor>,
                                      current_stream};

}  // namespace

py::capsule array_exchange(py::type cls, py::object device) {
  auto* own = reinterpret_cast<PyTypeObject*>(cls.ptr());
  if (g_array_class == own) return py::capsule(&kTable<false>, dlpack::kExchange);
  if (g_array_class != nullptr)
    throw std::invalid_argument("array_exchange: called for another class");
  g_names = new Names;
  g_array_class = reinterpret_cast<PyTypeObject*>(cls.release().ptr());
  g_device = device.release().ptr();
  return py::capsule(&kTable<false>, dlpack::kExchange);
}

py::capsule tensor_exchange(py::type cls, py::object state) {
  if (g_array_class == nullptr) throw std::invalid_argument("call array_exchange first");
  auto* own = reinterpret_cast<PyTypeObject*>(cls.ptr());
  if (g_tensor_class == own) return py::capsule(&kTable<true>, dlpack::kExchange);
  if (g_tensor_class != nullptr)
    throw std::invalid_argument("tensor_exchange: called for another class");
  g_tensor_class = reinterpret_cast<PyTypeObject*>(cls.release().ptr());
  g_state = state.release().ptr();
  return py::capsule(&kTable<true>, dlpack::kExchange);
}

}  // namespace needle
