# What the builds of needle-runtime and needle-dl share: Python, pybind11's headers, and the options
# that all targets are compiled with.
include_guard(GLOBAL)

set(NEEDLE_SANITIZE "" CACHE STRING "Sanitizers to build with, e.g. address,undefined")
set(NEEDLE_PYBIND11_INCLUDE "" CACHE PATH "Folder with pybind11's headers, when Python has none")

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_STANDARD 17)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
if(APPLE)
  set(origin "@loader_path")
else()
  set(origin "$ORIGIN")
endif()

find_package(Python 3.10 COMPONENTS Interpreter Development.Module REQUIRED)
find_package(Threads REQUIRED)

function(needle_ask_python result code)
  execute_process(COMMAND ${Python_EXECUTABLE} -c "${code}" OUTPUT_VARIABLE output
                  ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  set(${result} "${output}" PARENT_SCOPE)
endfunction()

# The folder of a Python package, which is not imported; empty if there is none.
function(needle_find_package result name)
  needle_ask_python(folder "import importlib.util as u; \
print(next(iter(u.find_spec('${name}').submodule_search_locations)))")
  set(${result} "${folder}" PARENT_SCOPE)
endfunction()

# Headers are all that is needed of pybind11. PyTorch carries a copy, which serves hosts without it.
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

add_library(needle_options INTERFACE)
target_include_directories(needle_options INTERFACE ${CMAKE_CURRENT_LIST_DIR}/src)
target_compile_options(needle_options INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-fno-math-errno;-fno-trapping-math>"
  "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Xcompiler -Wall>")
if(NEEDLE_SANITIZE)
  target_compile_options(needle_options INTERFACE -fsanitize=${NEEDLE_SANITIZE} -g
                         -fno-omit-frame-pointer -fno-sanitize-recover=undefined)
  target_link_options(needle_options INTERFACE -fsanitize=${NEEDLE_SANITIZE})
endif()
