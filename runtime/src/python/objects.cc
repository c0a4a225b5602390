#include "python/objects.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "python/gil.h"

namespace py = pybind11;
namespace ffi = tvm::ffi;

namespace needle {

namespace {

// A module, a function or a tensor in host memory. Other Python code gets the C handle in the
// same way as from an object of tvm_ffi's package, so it accepts either.
struct Object {
  ffi::Any value;
};

// The memory of a NumPy array, which the tensor keeps alive.
class OfArray {
 public:
  explicit OfArray(PyObject* array) : array_(array) {}
  void AllocData(DLTensor* tensor, void* data) {
    tensor->data = data;
    Py_INCREF(array_);
  }
  void FreeData(DLTensor*) {
    // A machine may drop its arguments on a thread that does not hold the GIL. When the process is
    // about to end, such a thread leaves the array alone.
    if (!Py_IsInitialized() || (finalizing() && PyGILState_Check() == 0)) return;
    const PyGILState_STATE state = PyGILState_Ensure();
    {
      const py::error_scope kept;  // the array's owner may run Python code
      Py_DECREF(array_);
    }
    PyGILState_Release(state);
  }

 private:
  PyObject* array_;
};

Object tensor(const py::array& array, const std::vector<int64_t>& shape, uint8_t code,
              uint8_t bits) {
  int64_t size = bits / 8;
  for (const int64_t extent : shape)
    if (extent < 0 || __builtin_mul_overflow(size, extent, &size))
      throw py::value_error("tensor: a shape of more than 2^63 - 1 bytes");
  if (size != array.nbytes() || (array.flags() & py::array::c_style) == 0)
    throw py::value_error("tensor: an array of another size, or not C-contiguous");
  auto* data = const_cast<void*>(array.data());
  return {ffi::Tensor::FromNDAlloc(OfArray(array.ptr()), ffi::ShapeView(shape.data(), shape.size()),
                                   DLDataType{code, bits, 1}, DLDevice{kDLCPU, 0}, data)};
}

const DLTensor& host_tensor(const Object& self) {
  const auto found = self.value.as<ffi::Tensor>();
  if (!found.has_value()) throw py::type_error("a " + self.value.GetTypeKey() + " is not a tensor");
  if (found->device().device_type != kDLCPU)
    throw py::type_error("the tensor is not in host memory");
  return *found->GetDLTensorPtr();
}

py::tuple shape_of(const Object& self) {
  const DLTensor& found = host_tensor(self);
  py::tuple shape(found.ndim);
  for (int32_t i = 0; i < found.ndim; ++i) shape[i] = py::int_(found.shape[i]);
  return shape;
}

char* data_of(const DLTensor& tensor) {
  return static_cast<char*>(tensor.data) + tensor.byte_offset;
}

// A NumPy array over a tensor's memory, which it keeps alive; `dtype` is NumPy's dtype for it.
py::array array_of(const Object& self, const py::dtype& dtype) {
  const DLTensor& found = host_tensor(self);
  if (dtype.itemsize() * 8 != found.dtype.bits) throw py::value_error("array: another dtype");
  std::vector<py::ssize_t> strides;
  for (int32_t i = 0; i < found.ndim; ++i) strides.push_back(found.strides[i] * dtype.itemsize());
  const std::vector<py::ssize_t> shape(found.shape, found.shape + found.ndim);
  return py::array(dtype, shape, strides, data_of(found), py::cast(self));
}

uintptr_t handle_of(const Object& self) {
  return reinterpret_cast<uintptr_t>(self.value.as<ffi::Object>());
}

uintptr_t address_of(const Object& self) {
  return reinterpret_cast<uintptr_t>(data_of(host_tensor(self)));
}

std::string dtype_of(const Object& self) {
  return ffi::DLDataTypeToString(host_tensor(self).dtype);
}

ffi::Any argument_of(const py::handle& value) {
  if (value.is_none()) return nullptr;
  if (py::isinstance<Object>(value)) return value.cast<const Object&>().value;
  if (py::isinstance<py::bool_>(value)) return value.cast<bool>();
  if (py::isinstance<py::int_>(value)) return value.cast<int64_t>();
  if (py::isinstance<py::float_>(value)) return value.cast<double>();
  if (py::isinstance<py::str>(value)) return ffi::String(value.cast<std::string>());
  if (py::isinstance<py::list>(value) || py::isinstance<py::tuple>(value)) {
    ffi::Array<ffi::Any> array;
    for (const py::handle each : value) array.push_back(argument_of(each));
    return array;
  }
  const py::object handle = value.attr("__chandle__")();
  void* object = PyLong_AsVoidPtr(handle.ptr());
  if (PyErr_Occurred()) throw py::error_already_set();
  if (object == nullptr) throw py::value_error("a null handle");
  TVMFFIAny any{};
  any.type_index = static_cast<TVMFFIObject*>(object)->type_index;
  any.v_obj = static_cast<TVMFFIObject*>(object);
  return ffi::AnyView::CopyFromTVMFFIAny(any);
}

py::object result_of(ffi::Any value) {
  if (value == nullptr) return py::none();
  switch (value.type_index()) {
    case ffi::TypeIndex::kTVMFFIBool:
      return py::bool_(value.cast<bool>());
    case ffi::TypeIndex::kTVMFFIInt:
      return py::int_(value.cast<int64_t>());
    case ffi::TypeIndex::kTVMFFIFloat:
      return py::float_(value.cast<double>());
  }
  if (const auto text = value.as<ffi::String>()) return py::str(std::string(*text));
  if (const auto array = value.as<ffi::Array<ffi::Any>>()) {
    py::list list;
    for (const ffi::Any& each : *array) list.append(result_of(each));
    return list;
  }
  return py::cast(Object{std::move(value)});
}

py::object call(const Object& self, const py::args& args) {
  const auto function = self.value.as<ffi::Function>();
  if (!function.has_value())
    throw py::type_error("a " + self.value.GetTypeKey() + " is not a function");
  std::vector<ffi::Any> kept;
  std::vector<ffi::AnyView> arguments;
  for (const py::handle each : args) kept.push_back(argument_of(each));
  for (const ffi::Any& each : kept) arguments.emplace_back(each);
  ffi::Any result;
  {
    const MaybeReleaseGil released(true);
    function->CallPacked(arguments.data(), static_cast<int32_t>(arguments.size()), &result);
  }
  return result_of(std::move(result));
}

Object member(const Object& self, const std::string& name) {
  const auto module = self.value.as<ffi::Module>();
  if (!module.has_value())
    throw py::type_error("a " + self.value.GetTypeKey() + " is not a module");
  const auto found = (*module)->GetFunction(name, false);
  if (!found.has_value()) throw py::attribute_error("the module has no function " + name);
  return {*found};
}

py::object global_function(const std::string& name) {
  const auto found = ffi::Function::GetGlobal(name);
  return found.has_value() ? py::cast(Object{*found}) : py::none();
}

}  // namespace

void set_error(const TVMFFIByteArray& kind, const TVMFFIByteArray& message) {
  const auto text = [](const TVMFFIByteArray& bytes) {
    return py::reinterpret_steal<py::str>(
        PyUnicode_DecodeUTF8(bytes.data, static_cast<py::ssize_t>(bytes.size), "replace"));
  };
  const py::str name = text(kind);
  py::object type = py::reinterpret_borrow<py::object>(PyExc_RuntimeError);
  const py::dict modules = py::module_::import("sys").attr("modules");
  const py::object builtins = py::module_::import("builtins");
  // tvm_ffi's package, if it is in use, knows more kinds: those that TVM's compiler has registered.
  py::object found = py::none();
  if (modules.contains("tvm_ffi.core"))
    found = modules["tvm_ffi.core"].attr("ERROR_NAME_TO_TYPE").attr("get")(name);
  if (found.is_none()) found = py::getattr(builtins, name, py::none());
  if (PyExceptionClass_Check(found.ptr())) type = found;
  PyErr_SetObject(type.ptr(), text(message).ptr());
}

void add_objects(py::module_& m) {
  py::register_local_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const ffi::Error& error) {
      const std::string kind = error.kind(), message = error.message();
      set_error({kind.data(), kind.size()}, {message.data(), message.size()});
    }
  });
  py::class_<Object>(m, "Object")
      .def("__call__", &call)
      .def("__getitem__", &member)
      .def("__chandle__", &handle_of)
      .def("data_ptr", &address_of)
      .def("array", &array_of)
      .def_property_readonly("shape", &shape_of)
      .def_property_readonly("dtype", &dtype_of)
      .def("__dlpack__",
           [](const Object& self, const py::kwargs& how) {
             return array_of(self, py::dtype(dtype_of(self))).attr("__dlpack__")(**how);
           })
      .def("__dlpack_device__", [](const Object&) { return std::pair(int{kDLCPU}, 0); });
  m.def("global_function", &global_function);
  m.def("tensor", &tensor);
}

}  // namespace needle
