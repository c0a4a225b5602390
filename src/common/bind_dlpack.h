// Conversion between views and DLPack capsules.
#pragma once

#include <pybind11/pybind11.h>

#include "common/dlpack.h"
#include "common/view.h"

namespace needle {

// A capsule that shares the memory and keeps it alive, in the versioned (1.0) or the older form.
// The consumer works on `stream`, numbered as in DLPack; the CPU has none.
pybind11::capsule to_dlpack(const View& view, bool versioned, int64_t stream);
// A view that takes the capsule over. TypeError for other objects and element types, BufferError
// for memory that is read-only, misaligned for its type, or not on a device of the module.
View from_dlpack(pybind11::object capsule);

// TypeError for an element type that needle does not store.
DType dtype_of_dlpack(const dlpack::DataType& type);

// The same without a capsule. The tensor's owner calls its deleter once; an import takes it over,
// unless it throws.
dlpack::ManagedVersioned* export_view(const View& view, int64_t stream);
View import_view(dlpack::ManagedVersioned* tensor);

}  // namespace needle
