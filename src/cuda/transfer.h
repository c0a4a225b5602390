// Copies between the host and a device.
#pragma once

#include "cuda/runtime.h"

namespace needle {
namespace cuda {

// Reads the elements of a compact view when all work on it is done.
void read(const View& v, void* to);
// Makes a copy of a view on another device.
View transfer(const View& v, int device);

}  // namespace cuda
}  // namespace needle
