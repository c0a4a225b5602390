// Conversion between views and DLPack capsules.
#pragma once

#include <pybind11/pybind11.h>

#include "common/dlpack.h"
#include "common/view.h"

namespace needle {

// Makes a capsule, in the versioned (1.0) or the older form, that shares and keeps alive the view's
// memory. The consumer works on `stream`, numbered as in DLPack; the CPU has none.
pybind11::capsule to_dlpack(const View& view, bool versioned, int64_t stream);
// Makes a view that takes the capsule over. Throws TypeError for other objects and element types,
// BufferError for memory that is read-only, misaligned, or not on a device of the module.
View from_dlpack(pybind11::object capsule);

// Returns the dtype of a DLPack element type. Throws TypeError if needle does not store that type.
DType dtype_of_dlpack(const dlpack::DataType& type);

// The same two conversions without a capsule. The tensor's owner calls its deleter once; an import
// takes the tensor over, unless it throws.
dlpack::ManagedVersioned* export_view(const View& view, int64_t stream);
View import_view(dlpack::ManagedVersioned* tensor);

}  // namespace needle
