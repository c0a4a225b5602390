"""Functions that equal bodies of symbolic nests share."""

import itertools

import numpy as np
import pytest

from needle_tvm._tvm.names import relax, tirx, tvm
from needle_tvm.tir import tasks
from needle_tvm.tir.functions import nodes_in, prim_funcs
from tests.needle_tvm.symbolic import HOST, SIZES, Compiled, lowered, module_of, normal, variable


def layers(*widths):
    """A chain of layers relu(x @ w + b) over n rows, between these widths, and its weights."""

    def function(emit, x, *weights):
        for w, b in zip(weights[::2], weights[1::2], strict=True):
            sums = emit(relax.op.add(emit(relax.op.matmul(x, w)), b))
            x = emit(relax.op.nn.relu(sums))
        return x

    pairs = list(itertools.pairwise(widths))
    shapes = [shape for a, b in pairs for shape in ((a, b), (b,))]
    module = module_of(
        function, (variable("n"), widths[0]), *shapes, params=len(shapes), most={"n": 64}
    )
    return module, [normal(*shape, seed=n) / 6 for n, shape in enumerate(shapes)]


def tasks_of(module):
    return [f for name, f in prim_funcs(module).items() if name.startswith("task")]


@pytest.mark.parametrize("widths", [(40,) * 4, (40, 40, 24, 24)])
def test_equal_layers_share_their_functions_and_others_do_not(widths):
    kinds = set(itertools.pairwise(widths))
    each = [len(tasks_of(lowered(layers(*kind)[0]))) for kind in kinds]
    assert min(each) > 0
    assert len(tasks_of(lowered(layers(*widths)[0]))) == sum(each)


def test_layers_that_share_functions_are_right_at_every_size(tmp_path):
    module, weights = layers(40, 40, 40, 40, 24, 24)
    compiled = Compiled(module, tmp_path)
    for rows in SIZES:
        x = expected = normal(rows, 40)
        for w, b in zip(weights[::2], weights[1::2], strict=True):
            expected = np.maximum(expected.astype("float64") @ w + b, 0)
        np.testing.assert_allclose(compiled(x, *weights), expected, rtol=1e-4, atol=1e-5)


def test_registers_are_allocated_within_the_mark():
    """Outside it they would be memory of the caller's, and every step would store its sums."""
    module = lowered(layers(40, 40)[0])
    functions = {f"f{n}": f for n, f in enumerate(tasks_of(module))}
    passes, *_ = tvm.tirx.compilation_pipeline.PIPELINE_MAP["s_tir"]()
    with HOST:
        placed = passes(tasks.internal(tirx.transform.BindTarget(HOST)(tvm.IRModule(functions))))
    for function in prim_funcs(tasks.apart_again(placed)).values():
        marks = [m for m in nodes_in(function, tirx.AttrStmt) if m.attr_key == "compute_scope"]
        assert len(marks) == 1
        allocated = nodes_in(function, tirx.AllocBuffer)
        assert allocated
        assert len(nodes_in(marks[0], tirx.AllocBuffer)) == len(allocated)
