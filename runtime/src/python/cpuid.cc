// The Python module `needle_runtime.target._cpuid`: asks the processor for its features. Uses
// only Python's C API, so it loads where the other modules do not. It is needed because
// /proc/cpuinfo may be missing, or describe another processor.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>

namespace {

// cpuid(leaf, subleaf) -> (eax, ebx, ecx, edx); zeros for a leaf that the processor does not have.
PyObject* cpuid(PyObject*, PyObject* args) {
  unsigned int leaf, subleaf, a = 0, b = 0, c = 0, d = 0;
  if (!PyArg_ParseTuple(args, "II", &leaf, &subleaf)) return nullptr;
  __get_cpuid_count(leaf, subleaf, &a, &b, &c, &d);
  return Py_BuildValue("IIII", a, b, c, d);
}

// enabled() -> the bits of the registers that the operating system saves (XCR0); 0 if it saves
// none.
PyObject* enabled(PyObject*, PyObject*) {
  unsigned int a = 0, b = 0, c = 0, d = 0;
  unsigned long long bits = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) && (c & bit_OSXSAVE)) {
    unsigned int low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    bits = (static_cast<unsigned long long>(high) << 32) | low;
  }
  return PyLong_FromUnsignedLongLong(bits);
}

PyMethodDef methods[] = {{"cpuid", cpuid, METH_VARARGS, nullptr},
                         {"enabled", enabled, METH_NOARGS, nullptr},
                         {nullptr, nullptr, 0, nullptr}};

}  // namespace
#else
namespace {
PyMethodDef methods[] = {{nullptr, nullptr, 0, nullptr}};
}  // namespace
#endif

static PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_cpuid", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

PyMODINIT_FUNC PyInit__cpuid() { return PyModule_Create(&module); }
