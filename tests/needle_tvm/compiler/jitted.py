"""What the tests of `needle_tvm.jit` share."""

import numpy as np

import needle_tvm
from tests.needle_tvm.conftest import tensor

plain = needle_tvm.jit(stage="noopt")  # the least to compile


def ones(*shape):
    return tensor(np.ones(shape, "float32"))


def compilations(function):
    return function.cache_info().compilations
