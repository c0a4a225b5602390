"""The LSTM as one kernel: its numbers, and that it compiles elsewhere."""

import numpy as np
import pytest

from needle import nn
from needle.ops.recurrent import LstmSequence
from needle.trace import trace
from needle_tvm._tvm.names import te, tvm
from needle_tvm.frontend import lowering
from needle_tvm.kernels.recurrence.cpu import GATES, lstm_steps, pack_gates, steps_tile, steps_tiles
from needle_tvm.lower import build
from needle_tvm.lower.gpu_code import module_of_library
from needle_tvm.lower.linking import object_code
from needle_tvm.runtime.memory import aligned_copy
from needle_tvm.target.spec import resolve
from needle_tvm.tir.functions import calls_of, module_of
from tests.needle_tvm.conftest import tensor


@pytest.fixture(scope="module")
def target():
    return resolve("cpu", 2).to_tvm()


def test_weights_are_packed_at_load(target):
    module = lowering.lower(
        trace(nn.LSTM(4, 6, 2).eval(), tensor(np.zeros((5, 3, 4), "float32"))), target, "tuned"
    )
    assert calls_of(module, "main").count("lstm_steps") == 2
    assert calls_of(module, build.TRANSFORM).count("pack_gates") == 2


def kernel(steps, batch, hidden, dtype, target, with_sums):
    """A function of projected, h, c and w, that packs w and carries out the steps."""
    shapes = ((steps, batch, GATES * hidden), (batch, hidden), (batch, hidden))
    tile = steps_tile(batch, hidden, dtype, target, GATES)
    inputs = [te.placeholder(shape, dtype) for shape in shapes]
    w = te.placeholder((hidden, GATES * hidden), dtype)
    panels = pack_gates(w, tile.units)
    outputs = lstm_steps([*inputs, panels], [tile], with_sums=with_sums)
    function = te.create_prim_func([*inputs, w, *outputs])
    return module_of(function.with_attr("global_symbol", "main"))


@pytest.mark.parametrize(("least", "most"), [(1, 1), (1, 2), (1, 256), (3, 5), (2, 7), (64, 64)])
def test_tiles_of_a_symbolic_batch(least, most, target):
    """Fewest rows first, none for fewer than the least or more than hold the most."""
    rows = [tile.rows for tile in steps_tiles(least, most, 128, "float32", target, GATES)]
    assert rows == sorted(set(rows))
    largest = steps_tiles(1, 1 << 20, 128, "float32", target, GATES)[-1].rows
    assert rows[0] >= min(least, largest)
    assert all(each < most for each in rows[:-1])
    assert rows[-1] == largest or rows[-1] >= most


# From one row and unit to tiles and panels that are not full, on one thread and on two.
SHAPES = [(1, 1, 1), (3, 2, 16), (4, 3, 7), (2, 7, 33), (3, 13, 20), (5, 1, 96), (3, 11, 131)]


@pytest.mark.parametrize(
    ("shape", "dtype", "threads"),
    [
        *((shape, "float32", 2) for shape in SHAPES),
        *((shape, "float32", 1) for shape in SHAPES[2::2]),
        *((shape, "float64", 2) for shape in SHAPES[1::2]),
        (SHAPES[4], "float64", 1),
    ],
    ids=str,
)
def test_the_kernel_is_the_op(rng, shape, dtype, threads):
    steps, batch, hidden = shape
    target = resolve("cpu", threads).to_tvm()
    with target:
        run = tvm.tirx.build(kernel(*shape, dtype, target, True), target=target)["main"]
    arrays = [
        rng.standard_normal(extents).astype(dtype)
        for extents in ((steps, batch, GATES * hidden), (batch, hidden), (batch, hidden))
    ]
    arrays.append((rng.standard_normal((hidden, GATES * hidden)) / hidden).astype(dtype))
    arrays[0][-1, 0, -1] = np.nan  # an input of the last step reaches its own unit alone
    expected = LstmSequence().reference(*(array.astype("float64") for array in arrays))
    given = [tvm.runtime.tensor(aligned_copy(array)) for array in arrays]
    found = [tvm.runtime.tensor(aligned_copy(np.zeros(e.shape, dtype))) for e in expected]
    run(*given, *found)
    tolerance = 1e-5 if dtype == "float32" else 1e-12
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.numpy(), other, rtol=tolerance, atol=tolerance)


def test_it_compiles_for_other_processors(processor, tmp_path):
    with processor:
        built = tvm.tirx.build(kernel(3, 5, 130, "float32", processor, False), target=processor)
    assert object_code(module_of_library(built), tmp_path / "code.o")
