# find_package(needle_runtime) defines the target needle_runtime::needle_runtime. It finds this
# file with
#   cmake -DCMAKE_PREFIX_PATH="$(python -m needle_runtime prefix)"
# or with the path of a bundle.
get_filename_component(needle_runtime_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET needle_runtime::needle_runtime)
  add_library(needle_runtime::needle_runtime SHARED IMPORTED)
  set_target_properties(needle_runtime::needle_runtime PROPERTIES
    IMPORTED_LOCATION "${needle_runtime_prefix}/lib/libneedle_runtime.so"
    IMPORTED_SONAME libneedle_runtime.so
    INTERFACE_INCLUDE_DIRECTORIES "${needle_runtime_prefix}/include")
endif()
