# The options that all targets are compiled with; nothing here needs Python.
include_guard(GLOBAL)

set(NEEDLE_SANITIZE "" CACHE STRING "Sanitizers to build with, e.g. address,undefined")

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

find_package(Threads REQUIRED)

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
