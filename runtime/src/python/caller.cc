// The Python module `needle_runtime._native`: calls compiled code without Python between the
// caller's arrays and the code. It handles the plain case, arrays that fit, and leaves everything
// else to `needle_runtime.executor`, which does the same in Python and raises the errors.
#include <Python.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <structmember.h>
#include <tvm/ffi/c_api.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "ffi/objects.h"
#include "python/gil.h"
#include "python/objects.h"
#include "threads/adopt.h"
#include "threads/thread_pool.h"

namespace py = pybind11;

namespace needle {

namespace {

constexpr uintptr_t kAlignment = 64;  // bytes; alignment of copies
// Inputs of at most this many bytes are copied to memory that is kept between calls: allocating it
// would take as long as the copy.
constexpr int64_t kKept = 1 << 22;
// At least this many indices are checked by several threads; one thread would take 10 us or more.
constexpr int64_t kShared = 1 << 15;

// Returns the C handle of an Object, or of an object of tvm_ffi's Python package; null with an
// exception set.
void* handle_of(PyObject* object) {
  PyObject* number = PyObject_CallMethod(object, "__chandle__", nullptr);
  if (number == nullptr) return nullptr;
  void* handle = PyLong_AsVoidPtr(number);
  Py_DECREF(number);
  if (handle == nullptr && !PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "a null handle");
  return handle;
}

// A size that is known only at a call.
struct Dim {
  int64_t min, max, multiple_of;
  int64_t value = 0;  // in this call; 0 while it is unknown
};

// An axis whose extent is factor * size + added, for the size of a dim.
struct Axis {
  size_t axis, dim;
  int64_t factor, added;
};

struct Input {
  Window* window = nullptr;
  std::vector<Axis> axes;          // other axes have the window's extents
  PyObject* descriptor = nullptr;  // NumPy's dtype
  void* kept = nullptr;            // for aligned copies
  int64_t bytes = 0;
  uintptr_t alignment = kAlignment;  // bytes; code that gets less alignment crashes
  bool written = false;              // memory for a result, or an input that code writes
  bool indexed = false;              // whether its elements must lie in [low, high]
  int64_t low = 0, high = 0;
};

// The resources of one argument of a call, held until the call ends.
struct Held {
  DLManagedTensorVersioned* managed = nullptr;
  const char* given = nullptr;  // the argument's memory
  void* copy = nullptr;

  Held() = default;
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  ~Held() {
    if (managed != nullptr && managed->deleter != nullptr) {
      const py::error_scope kept;  // the owner may run Python code
      managed->deleter(managed);
    }
    std::free(copy);
  }
};

struct Caller {
  PyObject_HEAD vectorcallfunc call;
  PyObject* function;  // an object with a C handle, which keeps the code loaded
  PyObject* weights;   // a tuple of tensors with C handles
  PyObject* result;    // the class of results, None for NumPy's arrays
  void* handle;
  const DLPackExchangeAPI* result_api;
  int threads;
  bool bare, tuple, into, over, running;  // over: inputs are written
  std::vector<Input>* inputs;
  std::vector<Dim>* dims;
  std::vector<PyObject*>* outputs;  // NumPy's dtypes
  std::vector<TVMFFIAny>* arguments;
};

// Clears an error, because the Python path will raise its own. An interrupt stays set.
void clear_error() {
  if (PyErr_ExceptionMatches(PyExc_Exception)) PyErr_Clear();
}

// Returns the exchange table of a class; null if it has none, or if an interrupt is set.
const DLPackExchangeAPI* api_of(PyTypeObject* type) {
  PyObject* capsule =
      PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "__dlpack_c_exchange_api__");
  if (capsule == nullptr) {
    clear_error();
    return nullptr;
  }
  auto* api = static_cast<const DLPackExchangeAPI*>(
      PyCapsule_IsValid(capsule, "dlpack_exchange_api")
          ? PyCapsule_GetPointer(capsule, "dlpack_exchange_api")
          : nullptr);
  Py_DECREF(capsule);
  return api != nullptr && api->header.version.major == DLPACK_MAJOR_VERSION ? api : nullptr;
}

// Like `api_of`, but remembers the tables of the few classes that inputs have. These classes are
// kept alive, so that no other class gets their addresses.
const DLPackExchangeAPI* remembered_api(PyTypeObject* type) {
  static struct {
    PyTypeObject* type;
    const DLPackExchangeAPI* api;
  } known[8];
  for (auto& each : known) {
    if (each.type == type) return each.api;
    if (each.type != nullptr) continue;
    const DLPackExchangeAPI* api = api_of(type);
    if (api != nullptr) {
      Py_INCREF(type);
      each = {type, api};
    }
    return api;
  }
  return api_of(type);
}

template <class T>
[[gnu::always_inline]] inline bool within(const T* x, int64_t n, int64_t low, int64_t high) {
  uint64_t wrong = 0;
  // Uses the sign of a difference, because x86 without AVX2 cannot compare vectors of 64-bit
  // integers. An unsigned difference may wrap; the index is then outside, and the other difference
  // has its sign bit set.
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t value = static_cast<uint64_t>(static_cast<int64_t>(x[i]));
    wrong |= (value - static_cast<uint64_t>(low)) | (static_cast<uint64_t>(high) - value);
  }
  return wrong >> 63 == 0;
}

#ifdef __x86_64__
template <class T>
[[gnu::target("avx2")]] bool within_by_avx2(const T* x, int64_t n, int64_t low, int64_t high) {
  return within(x, n, low, high);
}
#endif

template <class T>
bool are_within(const void* data, int64_t begin, int64_t end, int64_t low, int64_t high) {
  const T* x = static_cast<const T*>(data) + begin;
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx2")) return within_by_avx2(x, end - begin, low, high);
#endif
  return within(x, end - begin, low, high);
}

// Indices that threads check together.
struct Indices {
  const Input* input;
  const void* data;
  int64_t count;
  std::atomic<int> wrong{0};
};

// A task of a team: checks its part of the indices.
int check_part(int task, Team* team, void* context) {
  auto* all = static_cast<Indices*>(context);
  const Input& input = *all->input;
  const int64_t part = (all->count + team->tasks - 1) / team->tasks;
  const int64_t begin = std::min(part * task, all->count);
  const int64_t end = std::min(begin + part, all->count);
  const bool right = input.window->tensor.dtype.bits == 32
                         ? are_within<int32_t>(all->data, begin, end, input.low, input.high)
                         : are_within<int64_t>(all->data, begin, end, input.low, input.high);
  if (!right) all->wrong.store(1, std::memory_order_relaxed);
  return 0;
}

// Whether all elements are valid indices; also false for dtypes that are left to Python.
bool in_range(const Input& input, const void* data, int threads) {
  const DLDataType dtype = input.window->tensor.dtype;
  if (dtype.code != kDLInt || (dtype.bits != 32 && dtype.bits != 64)) return false;
  Indices all{&input, data, input.bytes / (dtype.bits / 8)};
  Team alone{nullptr, 1};
  if (all.count < kShared)
    check_part(0, &alone, &all);
  else
    run_team(threads, check_part, &all);
  return all.wrong.load(std::memory_order_relaxed) == 0;
}

bool is_compact(int32_t ndim, const int64_t* shape, const int64_t* strides, int64_t unit) {
  for (int32_t i = ndim; i-- > 0;) {
    if (shape[i] != 1 && strides[i] != unit) return false;
    unit *= shape[i];
  }
  return true;
}

// Gives a window the extents of an argument with the same number of axes, and reads sizes from
// them. Returns false if the code does not accept a size, or if it differs from an earlier one.
bool resize(Input& input, const int64_t* shape, std::vector<Dim>& dims) {
  DLTensor& window = input.window->tensor;
  for (const Axis& each : input.axes) {
    const int64_t multiple = shape[each.axis] - each.added, size = multiple / each.factor;
    Dim& dim = dims[each.dim];
    if (size * each.factor != multiple) return false;
    if (dim.value == 0) {
      if (size < dim.min || size > dim.max || size % dim.multiple_of != 0) return false;
      dim.value = size;
    }
    if (dim.value != size) return false;
    window.shape[each.axis] = shape[each.axis];
  }
  int64_t step = 1;
  for (int32_t i = window.ndim; i-- > 0;) {
    window.strides[i] = step;
    if (__builtin_mul_overflow(step, window.shape[i], &step)) return false;
  }
  return !__builtin_mul_overflow(step, window.dtype.bits / 8, &input.bytes);
}

// Whether an argument with the same number of axes has an input's shape.
bool has_shape(Input& input, const int64_t* shape, std::vector<Dim>& dims) {
  const DLTensor& window = input.window->tensor;
  if (!input.axes.empty() && !resize(input, shape, dims)) return false;
  return std::memcmp(shape, window.shape, window.ndim * sizeof(int64_t)) == 0;
}

// Points an input's window at an argument's memory, or at an aligned copy. Returns false if the
// argument does not fit, for kinds of arrays that are left to Python, and if an interrupt is set.
bool place(Input& input, PyObject* argument, Held* held, std::vector<Dim>& dims, int threads) {
  DLTensor& window = input.window->tensor;
  void* data;
  if (Py_TYPE(argument) == py::detail::npy_api::get().PyArray_Type_) {
    const auto* array = py::detail::array_proxy(argument);
    if (array->descr != input.descriptor || array->nd != window.ndim ||
        (array->flags & py::array::c_style) == 0 ||
        (input.written && (array->flags & py::detail::npy_api::NPY_ARRAY_WRITEABLE_) == 0) ||
        !has_shape(input, array->dimensions, dims))
      return false;
    data = array->data;
  } else {
    const DLPackExchangeAPI* api = remembered_api(Py_TYPE(argument));
    if (api == nullptr) return false;
    if (api->managed_tensor_from_py_object_no_sync(argument, &held->managed) != 0) {
      clear_error();
      held->managed = nullptr;
      return false;
    }
    const DLTensor& tensor = held->managed->dl_tensor;
    if (input.written && (held->managed->flags & DLPACK_FLAG_BITMASK_READ_ONLY) != 0) return false;
    if (tensor.device.device_type != kDLCPU || tensor.ndim != window.ndim ||
        std::memcmp(&tensor.dtype, &window.dtype, sizeof tensor.dtype) != 0 ||
        !has_shape(input, tensor.shape, dims) ||
        (tensor.strides != nullptr && !is_compact(tensor.ndim, tensor.shape, tensor.strides, 1)))
      return false;
    data = static_cast<char*>(tensor.data) + tensor.byte_offset;
  }
  if (data == nullptr && input.bytes > 0) return false;  // PyTorch's fake tensors have no memory
  if (input.indexed && !in_range(input, data, threads)) return false;
  held->given = static_cast<const char*>(data);
  if (reinterpret_cast<uintptr_t>(data) % input.alignment != 0 || input.bytes == 0) {
    if (input.written && input.bytes > 0) return false;
    void*& copy = input.bytes <= kKept && input.axes.empty() ? input.kept : held->copy;
    if (copy == nullptr) {
      const size_t rounded = (input.bytes + kAlignment) / kAlignment * kAlignment;
      copy = std::aligned_alloc(kAlignment, rounded);
      if (copy == nullptr) return false;
    }
    if (input.bytes > 0) std::memcpy(copy, data, input.bytes);
    data = copy;
  }
  window.data = data;
  return true;
}

void release_tensor(PyObject* capsule) {
  TVMFFIObjectDecRef(PyCapsule_GetPointer(capsule, nullptr));
}

// Makes a Python array over a result's memory; null with an exception set.
PyObject* array_of(const Caller* self, Handle result, size_t number) {
  if (self->result_api != nullptr) {
    DLManagedTensorVersioned* managed = nullptr;
    void* made = nullptr;
    if (TVMFFITensorToDLPackVersioned(result.get(), &managed) != 0) return PyErr_NoMemory();
    self->result_api->managed_tensor_to_py_object_no_sync(managed, &made);
    return static_cast<PyObject*>(made);
  }
  const DLTensor* tensor = result.tensor();
  PyObject* owner = PyCapsule_New(result.get(), nullptr, release_tensor);
  if (owner == nullptr) return nullptr;
  result.release();
  auto& api = py::detail::npy_api::get();
  PyObject* descriptor = (*self->outputs)[number];
  Py_INCREF(descriptor);  // the new array takes it over
  PyObject* array = api.PyArray_NewFromDescr_(
      api.PyArray_Type_, descriptor, tensor->ndim, reinterpret_cast<Py_intptr_t*>(tensor->shape),
      nullptr, static_cast<char*>(tensor->data) + tensor->byte_offset,
      py::detail::npy_api::NPY_ARRAY_WRITEABLE_, nullptr);
  if (array == nullptr) {
    Py_DECREF(owner);
  } else if (api.PyArray_SetBaseObject_(array, owner) != 0) {  // this takes the owner over
    Py_CLEAR(array);
  }
  return array;
}

// Sets the Python exception for the compiled code's error.
void raise_error() {
  if (PyErr_Occurred()) return;
  TVMFFIObjectHandle raised = nullptr;
  TVMFFIErrorMoveFromRaised(&raised);
  if (raised == nullptr) {
    PyErr_SetString(PyExc_RuntimeError, "the code failed and raised no error");
    return;
  }
  const Handle error(raised);
  const TVMFFIErrorCell* cell = TVMFFIErrorGetCellPtr(raised);
  set_error(cell->kind, cell->message);
}

bool bind_weights(Caller* self, PyObject* weights) {
  if (!PyTuple_Check(weights)) {
    PyErr_SetString(PyExc_TypeError, "weights are a tuple of tensors");
    return false;
  }
  const size_t inputs = self->inputs->size(), count = PyTuple_GET_SIZE(weights);
  std::vector<TVMFFIAny> bound(self->arguments->begin(), self->arguments->begin() + inputs);
  for (size_t i = 0; i < count; ++i) {
    void* handle = handle_of(PyTuple_GET_ITEM(weights, i));
    if (handle == nullptr) return false;
    bound.push_back(tensor_argument(handle));
  }
  self->arguments->swap(bound);
  Py_INCREF(weights);
  Py_XSETREF(self->weights, weights);
  return true;
}

// References to the tensors in the code's result.
std::vector<Handle> results_of(const Caller* self, const TVMFFIAny& returned) {
  std::vector<Handle> results;
  Handle whole(returned.v_obj);
  if (self->bare) {
    results.push_back(std::move(whole));
    return results;
  }
  const auto* items = reinterpret_cast<const TVMFFISeqCell*>(returned.v_obj + 1);
  for (int64_t i = 0; i < items->size; ++i) {
    TVMFFIObjectHandle each = static_cast<const TVMFFIAny*>(items->data)[i].v_obj;
    TVMFFIObjectIncRef(each);
    results.emplace_back(each);
  }
  return results;
}

// Whether the results lie in separate memory. Other results are left to Python, which copies.
bool own_memory(const Caller* self, const std::vector<Handle>& results) {
  for (const Input& input : *self->inputs) {
    if (!unshared(input.window)) return false;
    for (const Handle& result : results)
      if (result.tensor()->data == input.window->tensor.data && input.bytes > 0) return false;
  }
  return true;
}

PyObject* arrays_of(const Caller* self, std::vector<Handle> results) {
  if (!self->tuple) return array_of(self, std::move(results[0]), 0);
  PyObject* tuple = PyTuple_New(static_cast<Py_ssize_t>(results.size()));
  for (size_t i = 0; i < results.size() && tuple != nullptr; ++i) {
    PyObject* array = array_of(self, std::move(results[i]), i);
    if (array == nullptr) {
      Py_CLEAR(tuple);
    } else {
      PyTuple_SET_ITEM(tuple, static_cast<Py_ssize_t>(i), array);
    }
  }
  return tuple;
}

// Whether memory for a result overlaps another result's or an input's memory, copied or not.
bool overlapping(const Caller* self, const Held* held) {
  const std::vector<Input>& all = *self->inputs;
  for (size_t i = 0; i < all.size(); ++i)
    for (size_t j = 0; j < i; ++j) {
      const char *a = held[i].given, *b = held[j].given;
      if ((all[i].written || all[j].written) && a < b + all[j].bytes && b < a + all[i].bytes)
        return true;
    }
  return false;
}

PyObject* run(Caller* self, PyObject* const* arrays, Held* held) {
  for (Dim& dim : *self->dims) dim.value = 0;
  for (size_t i = 0; i < self->inputs->size(); ++i)
    if (!place((*self->inputs)[i], arrays[i], &held[i], *self->dims, self->threads)) {
      if (PyErr_Occurred()) return nullptr;
      Py_RETURN_NOTIMPLEMENTED;
    }
  if ((self->into || self->over) && overlapping(self, held)) Py_RETURN_NOTIMPLEMENTED;
  TVMFFIAny returned{};
  int code;
  use_threads(self->threads);
  {
    MaybeReleaseGil released(true);
    code = TVMFFIFunctionCall(self->handle, self->arguments->data(),
                              static_cast<int32_t>(self->arguments->size()), &returned);
  }
  if (code != 0) {
    raise_error();
    return nullptr;
  }
  std::vector<Handle> results = results_of(self, returned);
  if (self->into) Py_RETURN_NONE;
  if (!own_memory(self, results)) {
    if (!self->over) Py_RETURN_NOTIMPLEMENTED;
    PyErr_SetString(PyExc_SystemError, "code that writes its inputs returned one of them");
    return nullptr;
  }
  return arrays_of(self, std::move(results));
}

// caller(weights, *arrays): the results; or NotImplemented if this is not the plain case, or if
// there are no weights (None).
PyObject* call(PyObject* object, PyObject* const* args, size_t flagged, PyObject* names) {
  auto* self = reinterpret_cast<Caller*>(object);
  const size_t count = PyVectorcall_NARGS(flagged), inputs = self->inputs->size();
  if (count != inputs + 1 || names != nullptr || self->running || args[0] == Py_None)
    Py_RETURN_NOTIMPLEMENTED;
  constexpr size_t kFew = 8;  // inputs that are held without an allocation
  Py_INCREF(object);          // other threads may drop their reference meanwhile
  self->running = true;       // an argument's Python code may call again while windows are in use
  PyObject* result = nullptr;
  try {
    if (args[0] != self->weights && !bind_weights(self, args[0])) {
      // bind_weights has set the error.
    } else if (inputs <= kFew) {
      Held held[kFew];
      result = run(self, args + 1, held);
    } else {
      std::vector<Held> held(inputs);
      result = run(self, args + 1, held.data());
    }
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  }
  self->running = false;
  Py_DECREF(object);
  return result;
}

void add_dims(Caller* self, const py::tuple& dims) {
  for (const py::handle each : dims) {
    const auto [min, max, multiple_of] = each.cast<std::tuple<int64_t, int64_t, int64_t>>();
    if (min < 1 || max < min || multiple_of < 1) throw py::value_error("dims: out of bounds");
    self->dims->push_back({min, max, multiple_of});
  }
}

void add_axes(Caller* self, const py::tuple& axes) {
  for (const py::handle each : axes) {
    const auto [number, axis, dim, factor, added] =
        each.cast<std::tuple<size_t, size_t, size_t, int64_t, int64_t>>();
    if (number >= self->inputs->size() || dim >= self->dims->size() || factor < 1)
      throw py::value_error("axes: there is no such input or dim");
    Input& input = (*self->inputs)[number];
    if (axis >= static_cast<size_t>(input.window->tensor.ndim))
      throw py::value_error("axes: there is no such axis");
    input.axes.push_back({axis, dim, factor, added});
  }
}

PyObject* new_caller(PyTypeObject* type, PyObject* args, PyObject* names) {
  static const char* const kNames[] = {"function", "inputs",  "outputs", "result", "bare", "tuple",
                                       "threads",  "written", "over",    "dims",   "axes", nullptr};
  PyObject *function, *inputs, *outputs, *result;
  PyObject *over = nullptr, *dims = nullptr, *axes = nullptr;
  int bare, tuple, threads, written = 0;
  if (!PyArg_ParseTupleAndKeywords(args, names, "OO!O!Oppi|iO!O!O!", const_cast<char**>(kNames),
                                   &function, &PyTuple_Type, &inputs, &PyTuple_Type, &outputs,
                                   &result, &bare, &tuple, &threads, &written, &PyTuple_Type, &over,
                                   &PyTuple_Type, &dims, &PyTuple_Type, &axes))
    return nullptr;
  auto object = py::reinterpret_steal<py::object>(type->tp_alloc(type, 0));
  if (!object) return nullptr;
  auto* self = reinterpret_cast<Caller*>(object.ptr());
  try {
    self->call = call;
    self->bare = bare != 0;
    self->tuple = tuple != 0;
    self->threads = threads;
    self->into = written > 0;
    self->inputs = new std::vector<Input>;
    self->dims = new std::vector<Dim>;
    self->outputs = new std::vector<PyObject*>;
    self->arguments = new std::vector<TVMFFIAny>;
    self->function = Py_NewRef(function);
    self->result = Py_NewRef(result);
    self->handle = handle_of(function);
    if (self->handle == nullptr) return nullptr;
    if (result != Py_None) {
      if (PyType_Check(result)) self->result_api = api_of(reinterpret_cast<PyTypeObject*>(result));
      if (self->result_api == nullptr) throw py::type_error("result: offers no exchange table");
    }
    for (const py::handle each : py::reinterpret_borrow<py::tuple>(outputs))
      self->outputs->push_back(each.inc_ref().ptr());
    for (const py::handle each : py::reinterpret_borrow<py::tuple>(inputs)) {
      const auto given =
          each.cast<std::tuple<std::vector<int64_t>, py::object, int, int,
                               std::optional<std::pair<int64_t, int64_t>>, uintptr_t>>();
      const auto& [shape, descriptor, code, bits, range, alignment] = given;
      Input input;
      const DLDataType dtype{static_cast<uint8_t>(code), static_cast<uint8_t>(bits), 1};
      input.bytes = bits / 8;
      for (int64_t extent : shape)
        if (extent < 0 || __builtin_mul_overflow(input.bytes, extent, &input.bytes))
          throw py::value_error("inputs: a shape of more than 2^63 - 1 bytes");
      if (alignment == 0 || kAlignment % alignment != 0)
        throw py::value_error("inputs: an alignment must divide 64");
      input.alignment = alignment;
      input.written =
          self->inputs->size() + written >= static_cast<size_t>(PyTuple_GET_SIZE(inputs));
      if (range) {
        input.indexed = input.bytes > 0;
        std::tie(input.low, input.high) = *range;
      }
      input.window = new_window(shape, dtype);
      self->inputs->push_back(std::move(input));
      self->inputs->back().descriptor = py::object(descriptor).release().ptr();
      self->arguments->push_back(tensor_argument(input.window));
    }
    if (over != nullptr)
      for (const py::handle each : py::reinterpret_borrow<py::tuple>(over)) {
        const auto number = each.cast<size_t>();
        if (number >= self->inputs->size()) throw py::value_error("over: there is no such input");
        (*self->inputs)[number].written = self->over = true;
      }
    if (dims != nullptr) add_dims(self, py::reinterpret_borrow<py::tuple>(dims));
    if (axes != nullptr) add_axes(self, py::reinterpret_borrow<py::tuple>(axes));
  } catch (py::error_already_set& error) {
    error.restore();
    return nullptr;
  } catch (py::builtin_exception& error) {
    error.set_error();
    return nullptr;
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return nullptr;
  }
  return object.release().ptr();
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  auto* self = reinterpret_cast<Caller*>(object);
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(self->function);
  Py_VISIT(self->weights);
  Py_VISIT(self->result);
  return 0;
}

int clear(PyObject* object) {
  auto* self = reinterpret_cast<Caller*>(object);
  Py_CLEAR(self->function);
  Py_CLEAR(self->weights);
  Py_CLEAR(self->result);
  return 0;
}

void deallocate(PyObject* object) {
  auto* self = reinterpret_cast<Caller*>(object);
  PyObject_GC_UnTrack(object);
  clear(object);
  if (self->inputs != nullptr)
    for (const Input& input : *self->inputs) {
      Py_DECREF(input.descriptor);
      std::free(input.kept);
      TVMFFIObjectDecRef(input.window);
    }
  if (self->outputs != nullptr)
    for (PyObject* each : *self->outputs) Py_DECREF(each);
  delete self->inputs;
  delete self->dims;
  delete self->outputs;
  delete self->arguments;
  PyTypeObject* type = Py_TYPE(object);
  type->tp_free(object);
  Py_DECREF(type);
}

PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Caller, call), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyType_Slot slots[] = {{Py_tp_new, reinterpret_cast<void*>(new_caller)},
                       {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                       {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
                       {Py_tp_clear, reinterpret_cast<void*>(clear)},
                       {Py_tp_dealloc, reinterpret_cast<void*>(deallocate)},
                       {Py_tp_members, members},
                       {0, nullptr}};

PyType_Spec spec = {"needle_runtime._native.Caller", sizeof(Caller), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL, slots};

}  // namespace

}  // namespace needle

PYBIND11_MODULE(_native, m) {
  using namespace needle;
  init_threads();
  add_objects(m);
  m.def("adopt", &adopt);
  m.def("use_threads", &use_threads);
  m.attr("Caller") = py::reinterpret_steal<py::object>(PyType_FromSpec(&spec));
}
