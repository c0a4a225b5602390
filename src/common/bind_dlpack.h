// DLPack capsules to and from views.
#pragma once

#include <pybind11/pybind11.h>

#include "common/view.h"

namespace needle {

// Shares the memory and keeps it alive; versioned (1.0) or the older form. The consumer works on
// `stream`, by DLPack's numbers for the device; the CPU has none.
pybind11::capsule to_dlpack(const View& view, bool versioned, int64_t stream);
// Takes the capsule over. TypeError for other objects and element types, BufferError for memory
// that is read-only, misaligned for its type, or on no device of the module.
View from_dlpack(pybind11::object capsule);

}  // namespace needle
