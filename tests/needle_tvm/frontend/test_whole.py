"""Dims of which no axis is the whole: 2 * n rows, or n + 1, are told from the rows there are."""

import numpy as np
import pytest

import needle as ndl
import needle_tvm
from needle import ops
from needle.sizes.dims import Dim
from needle_runtime.errors import InputError

N, K = Dim("n", max=20), Dim("k", min=8, max=24, multiple_of=8)


def model(x, y):
    halves = x.reshape((x.shape[0] // 2, 2, 3))
    return halves.sum(1), ops.concat([x, x], 0)[1:], y * (y.shape[0] - 1)


def wanted(x, y):
    return x.reshape(-1, 2, 3).sum(1), np.concatenate([x, x])[1:], y * (len(y) - 1)


@pytest.mark.parametrize("stage", ["noopt", "tuned"])
@pytest.mark.parametrize(("rows", "others"), [(2 * N, N + 1), (2 * K, N + 1)])
def test_right_at_every_size(stage, rows, others, rng):
    dims = {"x": {0: rows}, "y": {0: others}}
    zeros = np.zeros((16, 3), np.float32)
    exe = needle_tvm.compile(model, zeros, zeros[:9], dims=dims, stage=stage)
    (dim,) = rows.dims
    for size in {dim.min, 8, dim.max}:
        x = rng.standard_normal((2 * size, 3)).astype("float32")
        y = x[: size + 1] if dim is N else x[:9]
        for have, want in zip(exe(x, y), wanted(x, y), strict=True):
            np.testing.assert_allclose(have.numpy(), want, rtol=1e-5)
    if dim is N:
        with pytest.raises(
            InputError, match=r"'x' has 3 along axis 0, where 2 \* n is expected and n"
        ):
            exe(zeros[:3], zeros[:2])
        with pytest.raises(InputError, match=r"'y' has 4 .* n \+ 1 = 3 is expected \(n = 2 .*'x'"):
            exe(zeros[:4], zeros[:4])


def test_the_signature_has_the_names_that_were_given(tmp_path):
    exe = needle_tvm.compile(lambda x: x + 1, np.zeros((4, 3), "f"), dims={0: {0: 2 * N}})
    loaded = needle_tvm.load(exe.export(tmp_path / "small"))
    assert str(loaded.artifact.main.inputs[0].shape) == "(2 * n, 3)"
    assert [dim.name for dim in loaded.artifact.main.dims] == ["n"]
    assert loaded(ndl.Tensor(np.zeros((10, 3), "f"))).shape == (10, 3)
