"""Plain RNNs, and GRUs that reset before the product, as one kernel: their numbers."""

from functools import partial

import numpy as np
import pytest

from needle.ops.gru_reset_first import GruResetFirst
from needle.ops.rnn_sequence import RnnSequence
from needle_tvm._tvm.names import te, tvm
from needle_tvm.kernels.recurrence.cpu import pack_gates, steps_tile
from needle_tvm.kernels.recurrence.gru_reset_cpu import gru_reset_steps
from needle_tvm.kernels.recurrence.rnn_cpu import rnn_steps
from needle_tvm.runtime.memory import aligned_copy
from needle_tvm.target.spec import resolve
from needle_tvm.tir.functions import module_of

_RNN, _RESET = (range(1),), (range(2), range(2, 3))
KINDS = {
    "tanh": (RnnSequence("tanh"), partial(rnn_steps, nonlinearity="tanh"), _RNN),
    "relu": (RnnSequence("relu"), partial(rnn_steps, nonlinearity="relu"), _RNN),
    "reset": (GruResetFirst(), gru_reset_steps, _RESET),
}
# From one row and unit to tiles and panels that are not full, on one thread and on two.
SHAPES = [(1, 1, 1, 2), (4, 3, 7, 1), (3, 13, 20, 2), (5, 1, 96, 2), (3, 31, 131, 2), (2, 9, 33, 1)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_kernel_is_the_op(rng, kind, shape):
    op, steps_of, packed = KINDS[kind]
    *sizes, threads = shape
    steps, batch, hidden = sizes
    gates = sum(map(len, packed))
    dtype = "float64" if threads == 1 else "float32"
    target = resolve("cpu", threads).to_tvm()
    shapes = ((steps, batch, gates * hidden), (batch, hidden), (hidden, gates * hidden))
    projected, h, w = (te.placeholder(extents, dtype) for extents in shapes)
    tile = steps_tile(batch, hidden, dtype, target, len(packed[0]))
    panels = [pack_gates(w, tile.units, group) for group in packed]
    outputs = steps_of([projected, h, *panels], [tile], with_sums=kind == "reset")
    function = te.create_prim_func([projected, h, w, *outputs])
    with target:
        module = module_of(function.with_attr("global_symbol", "main"))
        run = tvm.tirx.build(module, target=target)["main"]
    arrays = [rng.standard_normal(extents).astype(dtype) for extents in shapes]
    arrays[2] /= np.sqrt(hidden).astype(dtype)
    arrays[0][-1, 0, -1] = np.nan  # an input of the last step reaches its own unit alone
    expected = op.reference(*(array.astype("float64") for array in arrays))
    expected = expected if isinstance(expected, tuple) else (expected,)
    given = [tvm.runtime.tensor(aligned_copy(array)) for array in arrays]
    empty = [np.zeros([int(n) for n in each.shape], dtype) for each in outputs]
    found = [tvm.runtime.tensor(aligned_copy(each)) for each in empty]
    run(*given, *found)
    tolerance = 2e-5 if dtype == "float32" else 1e-12
    for one, other in zip(found, expected, strict=False):  # a last result may be the kernel's own
        np.testing.assert_allclose(one.numpy(), other, rtol=tolerance, atol=tolerance)
