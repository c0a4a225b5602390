"""Ops on constants are computed when a graph is translated, where that makes it no larger."""

import numpy as np
import pytest

import needle as ndl
import needle_tvm
from needle import ops
from needle.op.base import REGISTRY, Op, register
from needle.trace import trace
from needle_tvm._tvm.names import relax, transform
from needle_tvm.frontend.translate import translate
from needle_tvm.graph import legalize
from tests.needle_tvm.conftest import tensor
from tests.needle_tvm.modules import Spec, emit, relax_module

CONSTANT = tensor(np.arange(6, dtype=np.float32).reshape(2, 3))


def ops_of(function, *inputs, prefer_emit=True, **options):
    """The number of operators and kernels that the translated function calls."""
    main = translate(trace(function, *inputs, **options), prefer_emit=prefer_emit)["main"]
    values = [binding.value for block in main.body.blocks for binding in block.bindings]
    return sum(isinstance(value, relax.Call) for value in values)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int32", "bool"])
def test_a_chain_of_constants_is_one_constant(dtype):
    constant, x = CONSTANT.astype(dtype), tensor(np.ones(3, np.float32)).astype(dtype)

    def function(x):
        ends = ops.reshape(constant, (3, 2))
        return x + ops.max(ends, axes=1), ops.transpose(constant)

    folded = ops.max(ops.reshape(constant, (3, 2)), axes=1)
    assert ops_of(function, x) == ops_of(lambda x: x + folded, x)
    plain = {"prefer_emit": False}
    assert ops_of(function, x, **plain) > ops_of(lambda x: x + folded, x, **plain)
    for found, wanted in zip(needle_tvm.compile(function, x)(x), function(x), strict=True):
        np.testing.assert_array_equal(found.numpy(), wanted.numpy())


def test_a_constant_does_not_grow():
    x = tensor(np.ones((1000, 2, 3), np.float32))
    assert ops_of(lambda x: x + ops.broadcast_to(CONSTANT, (1000, 2, 3)), x) == 2
    assert ops_of(lambda x: x[:10] + ops.broadcast_to(CONSTANT, (10, 2, 3)), x) == 2


def test_what_depends_on_a_size_is_not_folded():
    x = tensor(np.ones((4, 3), np.float32))
    dims = {0: {0: ndl.Dim("n", max=9)}}

    def function(x):
        return x + ops.sum(CONSTANT, axes=0) / x.shape[0]

    assert ops_of(function, x) == 1
    executable = needle_tvm.compile(function, x, dims=dims)
    for count in (1, 4, 9):
        given = tensor(np.ones((count, 3), np.float32))
        found, wanted = executable(given).numpy(), function(given).numpy()
        np.testing.assert_allclose(found, wanted, rtol=2e-7)


def test_an_op_of_a_user_is_not_folded():
    """Its `compute` and `emit_te` may differ, which the check of a compile must see."""

    @register
    class FoldedTwice(Op):
        def infer(self, x):
            return x

        def compute(self, x):
            return x + x

        def emit_te(self, k, x):
            return k.te.compute(x.shape, lambda *at: x[at] + x[at])

    try:
        x = tensor(np.ones((2, 3), np.float32))
        assert ops_of(lambda x: x + FoldedTwice()(CONSTANT), x) == 2
    finally:
        del REGISTRY["folded_twice"]


def test_an_error_of_a_constant_names_its_op(monkeypatch):
    def fails(self, x):
        raise ValueError("planted")

    x = tensor(np.ones((3, 2), np.float32))
    graph = trace(lambda x: x + ops.transpose(CONSTANT), x)
    (op,) = {type(n.op) for n in graph.nodes if n.op is not None and n.op.name != "add"}
    monkeypatch.setattr(op, "compute", fails)
    with pytest.raises(needle_tvm.errors.TranslationError, match=rf"{op.name}.*planted"):
        translate(graph, prefer_emit=True)


def legalized(function, *specs):
    """The values that the function binds after its operators became kernels."""
    module = transform.LegalizeOps(legalize.RULES)(relax_module(function, *specs))
    bindings = [each for block in module["main"].body.blocks for each in block.bindings]
    return [binding.value for binding in bindings]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "bool"])
@pytest.mark.parametrize("shape", [(6, 1), (1, 1), (5, 7)])
def test_a_constant_is_reshaped_at_once(dtype, shape):
    values = np.arange(np.prod(shape)).reshape(shape).astype(dtype)

    def function(x):
        constant = emit(relax.op.reshape(relax.const(values, dtype), (1, values.size)))
        return emit(relax.op.reshape(constant, (values.size,)))

    found = legalized(function, Spec(2))
    assert not any(isinstance(value, relax.Call) for value in found)
    last = [value.value.numpy() for value in found if not isinstance(value, relax.Var)][-1]
    np.testing.assert_array_equal(last, values.ravel())
    assert last.dtype == values.dtype


def test_an_argument_is_reshaped_by_a_kernel():
    found = legalized(lambda x: relax.op.reshape(x, (6,)), Spec(2, 3))
    assert any(isinstance(value, relax.Call) for value in found)
