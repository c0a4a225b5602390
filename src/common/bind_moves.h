// Bindings of the functions in moves.h.
#pragma once

#include <pybind11/pybind11.h>

namespace needle {

void bind_moves(pybind11::module_& m);

}  // namespace needle
