#pragma once
#include <tvm/support/io.h>
