"""Constants without elements."""

import numpy as np

from needle_tvm._tvm.names import relax
from needle_tvm.graph.passes.empty_constants import empty_constants
from needle_tvm.tir.functions import nothing
from tests.needle_tvm.modules import Spec, check_becomes, check_stays, kernel, relax_module


def joined(x, other):
    return relax.op.concat([x, other], axis=1)


def test_each_is_the_result_of_a_kernel():
    empty = relax.const(np.zeros((3, 0), "int32"), "int32")
    check_becomes(
        empty_constants,
        relax_module(lambda x: joined(x, empty), Spec(3, 2, dtype="int32")),
        relax_module(
            lambda x: joined(x, kernel(lambda: nothing((3, 0), "int32"), name="nothing")),
            Spec(3, 2, dtype="int32"),
        ),
    )


def test_constants_with_elements_stay():
    for values in (np.zeros((3, 1), "float32"), np.float32(0)):
        check_stays(
            empty_constants, relax_module(lambda x, v=values: x + relax.const(v), Spec(3, 2))
        )
