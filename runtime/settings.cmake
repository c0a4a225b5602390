# Settings that the builds of needle-runtime and needle-dl share: Python, pybind11's headers, and
# the options of options.cmake.
include_guard(GLOBAL)

include(${CMAKE_CURRENT_LIST_DIR}/options.cmake)

set(NEEDLE_PYBIND11_INCLUDE "" CACHE PATH "Folder with pybind11's headers, when Python has none")

find_package(Python 3.10 COMPONENTS Interpreter Development.Module REQUIRED)

function(needle_ask_python result code)
  execute_process(COMMAND ${Python_EXECUTABLE} -c "${code}" OUTPUT_VARIABLE output
                  ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  set(${result} "${output}" PARENT_SCOPE)
endfunction()

# Finds the folder of a Python package without importing it; the result is empty if there is none.
function(needle_find_package result name)
  needle_ask_python(folder "import importlib.util as u; \
print(next(iter(u.find_spec('${name}').submodule_search_locations)))")
  set(${result} "${folder}" PARENT_SCOPE)
endfunction()

# Only pybind11's headers are needed. PyTorch carries a copy, which is used if pybind11 is missing.
set(pybind_include "${NEEDLE_PYBIND11_INCLUDE}")
if(NOT pybind_include)
  needle_ask_python(pybind_include "import pybind11; print(pybind11.get_include())")
endif()
if(NOT pybind_include)
  needle_find_package(torch torch)
  set(pybind_include "${torch}/include")
endif()
if(NOT EXISTS "${pybind_include}/pybind11/pybind11.h")
  message(FATAL_ERROR "pybind11 was not found: pip install pybind11, or set NEEDLE_PYBIND11_INCLUDE")
endif()
