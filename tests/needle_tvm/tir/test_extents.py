"""Symbolic extents: their arithmetic, and the bounds that functions know of them."""

from __future__ import annotations

import pytest

from needle.autograd.shapes import broadcast_shapes
from needle.errors import ShapeError
from needle_runtime.errors import TargetError
from needle_tvm._tvm.names import relax
from needle_tvm.lower import build
from needle_tvm.lower.variant import Variant
from needle_tvm.tir import extents
from needle_tvm.tir.extents import Extent, extent_of
from needle_tvm.tir.functions import prim_funcs
from tests.needle_tvm.modules import SM_90
from tests.needle_tvm.symbolic import lowered, module_of, variable


def test_extents_are_equal_if_they_always_are():
    n, m = variable("n"), variable("m")
    assert Extent(n * m) == Extent(m * n)
    assert hash(Extent(n * m)) == hash(Extent(m * n))
    assert Extent(n) != Extent(m)
    assert Extent(n) != 4
    assert 0 not in (Extent(n), 3)


def test_arithmetic_becomes_a_number_where_it_is_one():
    n = variable("n")
    assert (extent_of(n) * 12) // extent_of(n) == 12
    assert extent_of(n * 12) // 12 == extent_of(n)
    assert extent_of(n - n + 3) == 3


def test_broadcast_takes_equal_extents_and_ones():
    n = extent_of(variable("n"))
    assert broadcast_shapes("add", (n, 4), (4,)) == (n, 4)
    assert broadcast_shapes("add", (1, 4), (n, 1)) == (n, 4)
    with pytest.raises(ShapeError):
        broadcast_shapes("add", (n,), (extent_of(variable("m")),))


@pytest.mark.parametrize(
    ("least", "most", "expected"), [(None, None, (0, None)), ({"n": 2}, {"n": 9}, (2, 9))]
)
def test_functions_know_the_bounds_of_their_own_variables(least, most, expected):
    n = variable("n")
    module = module_of(lambda emit, x: emit(relax.op.exp(x)), (n, 6), least=least, most=most)
    (function,) = prim_funcs(lowered(module, disable=("merge_kernels",))).values()
    assert list(extents.bounds_of(function).values()) == [expected]


def test_bounds_are_those_of_all_calls():
    n = variable("n")

    def twice(emit, x, y):
        sums = (emit(relax.op.sum(each, 0)) for each in (x, y))
        return emit(relax.op.matmul(*sums))

    shapes = (n, 6), (variable("m"), 6)
    module = module_of(twice, *shapes, least={"n": 1, "m": 3}, most={"n": 5, "m": 9})
    functions = prim_funcs(lowered(module, disable=("merge_kernels",)))
    found = [list(extents.bounds_of(f).values()) for f in functions.values()]
    assert [(1, 9)] in found


def test_a_gpu_refuses_symbolic_sizes_by_name():
    module = module_of(lambda emit, x: emit(relax.op.exp(x)), (variable("rows"), 6))
    with pytest.raises(TargetError, match="sizes rows: code for a GPU"):
        build.lower_module(module, SM_90, Variant(stage="tuned"))
