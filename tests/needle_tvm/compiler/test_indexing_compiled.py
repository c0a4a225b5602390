"""Functions that are made of ops, compiled: equal to the eager ones, and memory is safe."""

import numpy as np
import pytest

import needle as ndl
import needle_tvm
from needle import ops
from needle_runtime.errors import InputError
from needle_tvm.check.campaign.fenced import fenced
from tests.needle_tvm.conftest import tensor

# The registry's tests run the ops at every stage.
STAGES = [*(pytest.param(s, marks=pytest.mark.slow) for s in ("noopt", "fused")), "tuned"]
MASK = np.array([True, False, True])


def moved(x, i, s):
    cube = ops.reshape(x, (3, 2, 2))
    return (
        *(ops.tril(x), ops.triu(x, 1), ops.diagonal(x, 1), ops.diag(x[0], -1), ops.roll(x, 3)),
        *(ops.roll(x, (1, -1), (0, 1)), ops.tile(x, 2, 3), ops.repeat_interleave(x, 2, 1)),
        *(ops.expand(x, 2, -1, -1), ops.moveaxis(cube, 0, -1), ops.swapaxes(cube, 0, 2)),
        *(ops.flatten(cube, 1), ops.unflatten(x, 1, (2, 2)), *ops.chunk(x, 3, 1)),
        *(ops.windows(x, 1, 2), *ops.meshgrid(x[0], x[1])),
        *(x * ops.eye(3, 4), ops.linspace(0, 1, 4) * x),
        *(ops.pixel_shuffle(x.reshape(4, 1, 3), 2), ops.unfold(cube.reshape(1, 3, 2, 2), (2, 1))),
        ops.masked_fill(x, x > 0, -1e9),
    )  # fmt: skip


def chosen(x, i, s):
    return (
        *(ops.gather(x, 1, i), ops.take_along_axis(x, i, 1), ops.take(x, i)),
        *(getattr(ops, f"scatter{how}")(x, 1, i, s) for how in ("", "_add", "_max", "_min")),
        *(x.at[1].set(s[0]), x.at[:, ::2].add(1.0), x.at[1:, -1].max(0.0)),
        x.at[i[0], 1:3].set(2.0),
        *(x.at[:, i[1]].add(s), x.at[::-1, i[0]].min(s), x.at[i, i].set(s), x.at[MASK].add(s[:2])),
        x.at[x > 0].set(0.5),
    )  # fmt: skip


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("function", [moved, chosen])
def test_compiled_is_eager(function, stage, rng):
    x = tensor(rng.standard_normal((3, 4), dtype=np.float32))
    i = tensor(np.array([[2, -1, 0, 2], [0, 0, 1, -3], [1, 2, 2, 2]]))
    s = tensor(rng.standard_normal((3, 4), dtype=np.float32))
    found = needle_tvm.compile(function, x, i, s, stage=stage)(x, i, s)
    wanted = function(x, i, s)
    assert len(found) == len(wanted)
    for number, (got, want) in enumerate(zip(found, wanted, strict=True)):
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-6, err_msg=str(number))


@pytest.mark.parametrize("stage", STAGES)
def test_compiled_gradients_are_eager(stage, rng):
    x, s = (rng.standard_normal((3, 4), dtype=np.float32) for _ in "xs")
    index = np.array([[2, -1, 0, 2], [0, 0, 1, -3], [1, 2, 2, 2]])

    def gradients(x, i, s, g):
        y = ops.scatter(x, 1, i, s * s).at[i[0]].max(0.25).at[:, i[1]].set(s)
        y = y + ops.gather(x, 1, i) ** 2 + ops.scatter_max(x, 0, i, s)
        return ndl.autograd.grad(y, [x, s], g)

    arrays = [ndl.Tensor(x), tensor(index), ndl.Tensor(s), tensor(np.ones((3, 4), np.float32))]
    compiled = needle_tvm.compile(gradients, *arrays, stage=stage)
    for got, want in zip(compiled(*arrays), gradients(*arrays), strict=True):
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("stage", STAGES)
def test_computed_positions_that_miss(stage):
    """What is taken is the nearest; nothing is put. Inputs that are indices are checked."""
    x = tensor(np.arange(12, dtype=np.float32).reshape(3, 4))
    index = tensor(np.array([[0, 9, -9, 2**40]] * 3))

    def function(x, i):
        return ops.gather(x, 1, i + 0), ops.scatter(x, 1, i + 0, -1.0), x.at[:, i[0] + 0].add(1.0)

    taken, put, added = needle_tvm.compile(function, x, index * 0, stage=stage)(x, index)
    np.testing.assert_array_equal(taken.numpy(), x.numpy()[:, [0, 3, 0, 3]])
    wanted = x.numpy()
    wanted[:, 0] = -1
    np.testing.assert_array_equal(put.numpy(), wanted)
    wanted = x.numpy()
    wanted[:, 0] += 1
    np.testing.assert_array_equal(added.numpy(), wanted)
    checked = needle_tvm.compile(
        lambda x, i: ops.scatter_add(x, 1, i, 1.0), x, index * 0, stage=stage
    )
    with pytest.raises(InputError, match="9"):
        checked(x, index)


def test_sizes_that_the_call_decides(rng):
    n = ndl.Dim("n", min=5, max=64)

    def function(x, i, s):
        return (
            *(ops.gather(x, 0, i), ops.scatter_add(x, 0, i, s), ops.scatter(x, 0, i, s)),
            *(
                x.at[2:4].set(0.0),
                x.at[2].add(1.0),
                x.at[i[:, 0]].max(s),
                x.at[:, 1:].add(1.0),
                ops.roll(x, 2, 0),
            ),
            *(ops.tril(x, -1), ops.diagonal(x[:, :3], -1), ops.repeat(x, 2, 1), ops.flatten(x)),
            *(ops.repeat_interleave(x, 3, 0), ops.windows(x, 0, 3), ops.unbind(x, 1)[0]),
        )

    def inputs(size):
        x = rng.standard_normal((size, 5), dtype=np.float32)
        i = rng.integers(-size, size, (size, 5))
        return tensor(x), tensor(i), tensor(rng.standard_normal((size, 5), dtype=np.float32))

    dims = {"x": {0: n}, "i": {0: n}, "s": {0: n}}
    compiled = needle_tvm.compile(function, *inputs(8), dims=dims)
    for size in (5, 9, 33):
        given = inputs(size)
        for number, (got, want) in enumerate(zip(compiled(*given), function(*given), strict=True)):
            np.testing.assert_allclose(
                got.numpy(), want.numpy(), rtol=1e-5, atol=1e-6, err_msg=str(number)
            )


@pytest.mark.parametrize("name", ["nonzero", "unique", "masked_select"])
def test_what_values_decide_is_refused(name):
    x = tensor(np.ones((2, 3), np.float32))
    more = (lambda x: (x > 0,)) if name == "masked_select" else (lambda x: ())
    with pytest.raises(ndl.TraceError, match=name):
        needle_tvm.compile(lambda x: getattr(ops, name)(x, *more(x)), x)


@pytest.mark.parametrize("size", [1, 2, 64])
@pytest.mark.parametrize("dtype", ["int8", "int32", "int64"])
def test_elements_that_count_as_0_are_not_read(dtype, size):
    """TVM simplifies each side of a choice by what the condition says of it, and code computes
    both: an index of -1 was read, one element before x."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1, 2, size)).astype("float32")
    index = rng.integers(-1, size, (1, 4, 4096)).astype(dtype)
    weight = rng.normal(size=(1, 4, 4096)).astype("float32")
    op = ndl.ops.WeightedElements()
    compiled = needle_tvm.compile(lambda x, i, w: op(x, i, w), *map(tensor, (x, index, weight)))
    found = compiled(ndl.from_dlpack(fenced(x, at_end=False)), index, weight).numpy()
    np.testing.assert_allclose(found, op.reference(x, index, weight), rtol=1e-5, atol=1e-5)


def test_choices_between_integers_side_by_side():
    """TVM's partition of loops that it does not narrow to 32 bits compares numbers of two types."""

    def place(p):
        row = ops.where(p >= 0.0, ops.floor(p), 0.0).astype("int64")
        return ops.where(p >= 0.0, row * 9 + row, -1)

    def places(p):  # 378 of each: vectors leave a rest
        return ops.stack([place(p), place(p + 1)], 2).reshape((1, 2, -1))

    p = tensor(np.random.default_rng(0).normal(size=(1, 1, 9, 6, 7)).astype("float32"))
    np.testing.assert_array_equal(needle_tvm.compile(places, p)(p).numpy(), places(p).numpy())
