"""Products whose kernels end with the gates of a cell: their numbers, and which products fit."""

import numpy as np
import pytest

import needle as ndl
import needle_tvm
from needle import nn, ops
from needle.ops import Scan
from needle.recurrence import layers as recurrent
from needle.trace import trace
from needle_tvm.frontend import lowering
from needle_tvm.kernels.recurrence.gates import GatedProduct, fuse_gates, gates_tile, gates_tiles
from needle_tvm.lower import build
from needle_tvm.target.spec import resolve
from needle_tvm.tir.functions import calls_of
from tests.needle_tvm.conftest import tensor


@pytest.fixture(scope="module")
def target():
    return resolve("cpu", 2).to_tvm()


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm(z, h, c, w):
    out = []
    for share in z:
        i, f, g, o = np.split(share + h @ w, 4, 1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        out.append(h)
    return np.stack(out), c


def gru(z, h, w, bias):
    out = []
    for share in z:
        (a, b, n), (d, e, own) = np.split(share, 3, 1), np.split(h @ w + bias, 3, 1)
        n = np.tanh(n + sigmoid(a + d) * own)
        h = n + sigmoid(b + e) * (h - n)
        out.append(h)
    return np.stack(out), h


def minimal(z, h, w):
    """A GRU of two gates, one of which is read twice, and a peephole."""
    out = []
    for share in z:
        f, n = np.split(share + h @ w, 2, 1)
        f = sigmoid(f + h * 0.5)
        h = f * h + (1 - f) * np.tanh(n * f)
        out.append(h)
    return np.stack(out), h


def minimal_cell(w):
    width = w.shape[0]

    def cell(h, share):
        sums = share + h @ w
        f = ops.sigmoid(sums[:, :width] + h * 0.5)
        h = f * h + (1 - f) * ops.tanh(sums[:, width:] * f)
        return h, h

    return cell


CELLS = {
    "lstm": (4, lstm, lambda z, h, c, w: recurrent.lstm(z, h, c, w)[0::3]),
    "gru": (3, gru, recurrent.gru),
    "minimal": (2, minimal, lambda z, h, w: ndl.scan(minimal_cell(w), h, z)[::-1]),
}
# From one row and unit to tiles and panels that are not full, on one thread and on two.
SHAPES = [(1, 1, 1), (3, 2, 16), (4, 3, 7), (2, 7, 33), (3, 13, 20), (5, 1, 96), (3, 11, 131)]


def drawn(rng, cell, shape, dtype):
    steps, batch, hidden = shape
    gates = CELLS[cell][0]
    shapes = [(steps, batch, gates * hidden), (batch, hidden)]
    shapes += [(batch, hidden)] * (cell == "lstm") + [(hidden, gates * hidden)]
    shapes += [(gates * hidden,)] * (cell == "gru")
    arrays = [rng.standard_normal(each) / np.sqrt(each[0]) for each in shapes]
    arrays[0][-1, 0, -1] = np.nan  # an input of the last step reaches its own unit alone
    return [array.astype(dtype) for array in arrays]


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize(
    ("shape", "dtype", "threads"),
    [
        *((shape, "float32", 2) for shape in SHAPES),
        *((shape, "float32", 1) for shape in SHAPES[2::2]),
        *((shape, "float64", 2) for shape in SHAPES[1::2]),
    ],
    ids=str,
)
def test_the_kernel_is_the_cell(rng, cell, shape, dtype, threads):
    arrays = drawn(rng, cell, shape, dtype)
    _, reference, function = CELLS[cell]
    found = needle_tvm.compile(function, *map(tensor, arrays), threads=threads)(*arrays)
    expected = reference(*(array.astype("float64") for array in arrays))
    tolerance = 1e-5 if dtype == "float32" else 1e-12
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.numpy(), other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", [(3, 0, 16), (0, 3, 16), (2, 13, 1)])
def test_no_row_no_step_and_one_unit(rng, shape):
    steps, batch, hidden = shape
    sizes = ((steps, batch, 4 * hidden), (batch, hidden), (batch, hidden), (hidden, 4 * hidden))
    arrays = [rng.uniform(-1, 1, size).astype("float32") for size in sizes]
    function = CELLS["lstm"][2]
    found = needle_tvm.compile(function, *map(tensor, arrays), threads=2)(*arrays)
    for one, other in zip(found, function(*map(tensor, arrays)), strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-5, atol=1e-5)


def test_an_open_batch(rng):
    arrays = drawn(rng, "lstm", (3, 5, 33), "float32")
    n, t = ndl.Dim("n", max=40), ndl.Dim("t", max=9)
    dims = {0: {0: t, 1: n}, 1: {0: n}, 2: {0: n}}
    function = CELLS["lstm"][2]
    compiled = needle_tvm.compile(function, *map(tensor, arrays), dims=dims)
    for steps, batch in ((3, 5), (9, 40), (1, 1), (4, 17)):
        given = drawn(rng, "lstm", (steps, batch, 33), "float32")
        expected = lstm(*(array.astype("float64") for array in given))
        for one, other in zip(compiled(*given), expected, strict=True):
            np.testing.assert_allclose(one.numpy(), other, rtol=1e-5, atol=1e-5)


def test_weights_are_packed_at_load(target):
    graph = trace(nn.LSTM(4, 6, 2).eval(), tensor(np.zeros((5, 3, 4), "float32")))
    module = lowering.lower(graph, target, "tuned")
    assert sum(name.startswith("loop") for name in calls_of(module, "main")) == 2
    assert sum(n.startswith("pack_gates") for n in calls_of(module, build.TRANSFORM)) == 2


@pytest.mark.parametrize(("least", "most"), [(1, 1), (1, 2), (1, 256), (3, 5), (2, 7), (64, 64)])
def test_tiles_of_a_symbolic_batch(least, most, target):
    """Fewest rows first, none for fewer than the least or more than hold the most."""
    rows = [tile.rows for tile in gates_tiles(least, most, 128, "float32", target, 4)]
    assert rows == sorted(set(rows))
    largest = gates_tiles(1, 1 << 20, 128, "float32", target, 4)[-1].rows
    assert rows[0] >= min(least, largest)
    assert all(each < most for each in rows[:-1])
    assert rows[-1] == largest or rows[-1] >= most


@pytest.mark.parametrize("batch", [1, 2, 5, 6, 7, 9, 12, 13, 16, 20, 33, 64])
def test_a_tile_has_the_rows_of_which_the_last_tile_wastes_least(batch, target):
    """Of the numbers from half of the most that fit; of equals, the largest."""
    most = min(batch, gates_tiles(1, 1 << 20, 128, "float32", target, 4)[-1].rows)
    wasted = {rows: -(-batch // rows) * rows - batch for rows in range(most // 2 + 1, most + 1)}
    least = [rows for rows in wasted if wasted[rows] == min(wasted.values())]
    assert gates_tile(batch, 128, "float32", target, 4).rows == max(least)


def fused(cell, h, z, target):
    """How many products of a scan's body end with gates."""
    graph = trace(lambda h, z: ndl.scan(cell, h, z)[0], h, z)
    (op,) = [node.op for node in graph.nodes if isinstance(node.op, Scan)]
    op = op.only(())
    body = fuse_gates(op.body, op.states, op.states + op.sequences, target)
    return sum(isinstance(step.op, GatedProduct) for step in body.steps)


def of_gates(combine, width=6, dtype="float32"):
    """A cell of sums (B, width), from a state (B, 3)."""
    w = tensor(np.ones((3, width), dtype))

    def cell(h, z):
        sums = h @ w
        return combine(sums, z), None

    return cell


@pytest.mark.parametrize(
    ("cell", "count"),
    [
        (of_gates(lambda s, z: s[:, :3] * s[:, 3:] + z), 1),
        # Not a whole number of gates.
        (of_gates(lambda s, z: s[:, :3] + s[:, 4:] * z, width=7), 0),
        # One gate: TVM ends the product's kernel with it.
        (of_gates(lambda s, z: s * z, width=3), 0),
        # A unit reads another unit's sums.
        (of_gates(lambda s, z: s[:, 1:4] * s[:, 3:] + z), 0),
        # A reduction over the sums stands between.
        (of_gates(lambda s, z: ops.softmax(s, 1)[:, :3] * z), 0),
        # Another dtype in the end.
        (of_gates(lambda s, z: ops.cast(ops.cast(s[:, :3] * s[:, 3:], "int32"), "float32") + z), 1),
        # Bools behind the slices: the kernel ends with these.
        (of_gates(lambda s, z: ops.where(s[:, :3] > s[:, 3:], z, 0.5)), 1),
    ],
)
def test_which_products_fit(cell, count, target):
    h, z = tensor(np.ones((2, 3), "float32")), tensor(np.ones((4, 2, 3), "float32"))
    assert fused(cell, h, z, target) == count


def test_a_weight_of_the_state_is_not_packed(target):
    """One that is no constant of the loop."""

    def cell(state, z):
        h, w = state
        sums = h @ w
        return (sums[:, :3] * sums[:, 3:] + z, w * 0.5), None

    state = tensor(np.ones((2, 3), "float32")), tensor(np.ones((3, 6), "float32"))
    z = tensor(np.ones((4, 2, 3), "float32"))
    graph = trace(lambda h, w, z: ndl.scan(cell, (h, w), z)[0], *state, z)
    (op,) = [node.op for node in graph.nodes if isinstance(node.op, Scan)]
    body = fuse_gates(op.only(()).body, 2, 3, target)
    assert not any(isinstance(step.op, GatedProduct) for step in body.steps)


def test_it_compiles_for_other_processors(processor):
    graph = trace(nn.LSTM(4, 130).eval(), tensor(np.zeros((3, 5, 4), "float32")))
    assert lowering.lower(graph, processor, "tuned")


def test_masks_among_the_gates(rng):
    """Bools that are read twice, and an operand of bools, of a panel that is not full."""
    w, mask = tensor(rng.standard_normal((3, 6))), tensor(rng.random((2, 3)) > 0.5)

    def cell(h, z):
        s = h @ w
        opens = s[:, :3] > 0
        h = ops.where(opens, ops.tanh(s[:, 3:]), z) + ops.where(mask, s[:, :3], h * opens)
        return h, h

    h, z = rng.standard_normal((2, 3)), rng.standard_normal((4, 2, 3))
    model = lambda h, z: ndl.scan(cell, h, z)  # noqa: E731
    found = needle_tvm.compile(model, tensor(h), tensor(z))(h, z)
    for one, other in zip(found, model(tensor(h), tensor(z)), strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("hidden", [5, 16])
def test_narrow_values_behind_the_gates(rng, hidden):
    """Halves and small integers are computed wide and rounded or wrapped, as everywhere: in the
    product's own kernel they would not be."""
    w = tensor(rng.standard_normal((hidden, 2 * hidden)).astype("float32"))

    def cell(h, z):
        s = h @ w
        a, i = ops.cast(s[:, :hidden], "float16"), ops.cast(s[:, hidden:] * 60, "int8")
        b, j = ops.cast(ops.tanh(a) * a, "float32"), ops.cast(i * i, "float32")
        h = ops.tanh(b + j * 0.01 + z)
        return h, h

    # One step: a sum that rounds to the other side of a half or a whole number would go on.
    shapes = (2, hidden), (1, 2, hidden)
    h, z = (tensor(rng.standard_normal(shape).astype("float32")) for shape in shapes)
    model = lambda h, z: ndl.scan(cell, h, z)  # noqa: E731
    found = needle_tvm.compile(model, h, z, check=False)(h, z)
    for one, other in zip(found, model(h, z), strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-5, atol=1e-5)
