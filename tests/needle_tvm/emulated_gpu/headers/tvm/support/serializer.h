// Like io.h.
#pragma once

#include <tvm/support/io.h>
