"""Vectors end where elements begin to come from elsewhere, and every element is the right one."""

import numpy as np
import pytest

from needle import ops
from needle.trace import trace
from needle_tvm._tvm.names import tirx
from needle_tvm.frontend import lowering
from needle_tvm.kernels import cpu
from needle_tvm.target.spec import resolve
from needle_tvm.tir.functions import NODES, nodes_in, prim_funcs, variables_of
from tests.needle_tvm.conftest import tensor
from tests.needle_tvm.together import check_together

TARGET = resolve({"kind": "llvm", "mcpu": "skylake-avx512"}, 2).to_tvm()


def drawn(shape, dtype="float32"):
    return tensor((np.random.default_rng(3).standard_normal(shape) * 9).astype(dtype))


def choices_in_vectors(model, *inputs):
    """Vectorised loops with a choice between elements of two tensors, or with a division."""
    module = lowering.lower(trace(model, *inputs), TARGET, "tuned")
    functions = prim_funcs(cpu.schedule(module, TARGET)).values()
    return [
        loop
        for function in functions
        for loop in nodes_in(function.body, NODES.loop)
        if loop.kind == tirx.ForKind.VECTORIZED
        for block in nodes_in(loop, NODES.sblock)
        if any(str(call.op.name).endswith("if_then_else") for call in nodes_in(block, NODES.call))
        or any(
            block.iter_vars[-1].var in variables_of(division)
            for kind in NODES.division
            for division in nodes_in(block.body, kind)
        )
    ]


@pytest.mark.parametrize(
    "model",
    [
        lambda x: ops.roll(x, 5, -1),
        lambda x: ops.concat([x, x * 2, x], -1),
        lambda x: ops.repeat(x, 1, 3),
        lambda x: ops.concat([-x[:, 20:], x[:, :20]], 1) + x,
    ],
)
def test_neighbours_that_come_from_one_tensor_are_read_as_vectors(model):
    assert not choices_in_vectors(model, drawn((40, 51)))


def test_rows_that_repeat_often_stay_one_loop():
    assert choices_in_vectors(lambda x: ops.repeat(x, 1, 50), drawn((40, 20)))


def along_last(x, *repeats):
    return ops.repeat(x, *[1] * (x.ndim - 1), *repeats)


MOVES = (
    lambda x: ops.roll(x, 5, -1),
    lambda x: ops.roll(x, -1, 0),
    lambda x: ops.concat([x, x[..., : x.shape[-1] // 2], x], -1),
    lambda x: along_last(x, 3),
    lambda x: ops.concat([along_last(x, 2), ops.roll(x, 2, -1)], -1),
    lambda x: ops.pad(ops.roll(x, 1, -1), [(0, 0)] * (x.ndim - 1) + [(3, 2)]),
)


def test_every_element_comes_from_its_place():
    shapes = [(517,), (9, 51), (2, 3, 131)]
    check_together([(move, [drawn(shapes[i % 3])]) for i, move in enumerate(MOVES)])


@pytest.mark.slow
def test_every_element_comes_from_its_place_in_any_shape_and_dtype():
    shapes = [(517,), (70000,), (9, 51), (3, 5), (2, 3, 131), (40, 64)]
    inputs = [drawn(shape) for shape in shapes]
    inputs += [drawn((9, 51), dtype) for dtype in ("float64", "int8", "bool", "float16")]
    check_together([(move, [x]) for move in MOVES for x in inputs])


def test_arithmetic_of_pieces_is_that_of_the_whole():
    def model(x, y):
        return ops.exp(ops.concat([x - y, y, x * y], 1)) + ops.roll(ops.concat([y, x, x], 1), 7, 1)

    check_together([(model, [drawn((17, n)), drawn((17, n))]) for n in (1, 13, 40)])
