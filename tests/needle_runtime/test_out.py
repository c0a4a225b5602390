"""Calls with `out=`: results in memory that the caller gives."""

import ml_dtypes
import numpy as np
import pytest

import needle as ndl
import needle.nn as nn
import needle_tvm
from needle import backend_ndarray as nd
from needle import ops
from needle_runtime.calls import Calls
from needle_runtime.errors import InputError

X = np.random.default_rng(0).standard_normal((5, 12)).astype("float32")


@pytest.fixture(params=["native", "python"])
def way(request, monkeypatch):
    if request.param == "python":
        monkeypatch.setattr(Calls, "_new_caller", lambda *_, **__: lambda *_: NotImplemented)
    return request.param


class Several(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(12, 12), nn.Linear(12, 8)

    def forward(self, x):
        y = self.first(x)
        return {"y": y, "rest": [ops.reshape(self.second(y), (4, 10)), x]}


def compiled(function, *inputs, **options):
    if isinstance(function, nn.Module):
        function.eval()
    return needle_tvm.compile(function, *map(ndl.Tensor, inputs), threads=2, **options)


@pytest.mark.parametrize("stage", ["noopt", "fused", "tuned"])
def test_results_are_written_and_out_is_returned(way, stage):
    exe = compiled(Several(), X, stage=stage)
    expected = exe(X)
    out = {
        "y": np.empty((5, 12), "float32"),
        "rest": [ndl.Tensor(np.zeros((4, 10), "float32")), np.empty((5, 12), "float32")],
    }
    for _ in range(2):
        assert exe(X, out=out) is out
        assert np.array_equal(out["y"], expected["y"].numpy())
        assert np.array_equal(out["rest"][0].numpy(), expected["rest"][0].numpy())
        assert np.array_equal(out["rest"][1], X)
        out["y"][...] = 0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int32", "bool"])
@pytest.mark.parametrize("shape", [(), (0, 3), (7, 3)])
def test_dtypes_and_shapes(way, dtype, shape):
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    x = np.random.default_rng(1).integers(0, 2, shape).astype(kind)
    exe = compiled(lambda a: ops.where(a > 0, a, a), x)
    for out in (np.ones(shape, kind), ndl.Tensor(np.ones(shape, kind))):
        found = exe(x, out=out)
        assert found is out
        assert np.array_equal(x, found if isinstance(found, np.ndarray) else found.numpy())


def test_the_runtimes_call_and_foreign_tensors(way):
    torch = pytest.importorskip("torch")
    exe = compiled(lambda a: a * 2, X)
    out = torch.zeros(5, 12)
    assert exe.program(X, out=out) is out
    assert np.array_equal(out.numpy(), X * 2)


def test_memory_of_any_address_and_layout(way):
    exe = compiled(lambda a: a * 2, X)
    memory = np.zeros(X.nbytes + 64, np.uint8)
    for offset in range(9):
        out = np.ndarray(X.shape, X.dtype, memory, offset)
        assert np.array_equal(exe(X, out=out), X * 2)
    for out in (np.zeros((12, 5), "float32").T, np.zeros((10, 24), "float32")[::2, ::2]):
        assert np.array_equal(exe(X, out=out), X * 2)


def test_a_model_whose_argument_is_called_out(way):
    exe = compiled(lambda a, out: a + out, X, X)
    assert np.array_equal(exe(X, out=X).numpy(), X + X)


def test_what_does_not_fit_is_refused_and_nothing_written(way):
    exe = compiled(lambda a: a * 2, X)
    two = compiled(lambda a: (a * 2, a + 1), X)
    frozen = np.zeros_like(X)
    frozen.flags.writeable = False
    memory = np.zeros(100, "float32")
    part, other = memory[:60].reshape(5, 12), memory[30:90].reshape(5, 12)
    shared = np.lib.stride_tricks.as_strided(np.zeros(20, "float32"), (5, 12), (4, 4))
    bytes_ = np.zeros(400, np.uint8)
    odd, over = (np.ndarray((5, 12), "float32", bytes_, k - bytes_.ctypes.data % 4) for k in (5, 8))
    part[...] = X
    before = memory.copy()
    for callee, args, out, message in [
        (exe, (X,), np.zeros((5, 11), "float32"), r"out is float32\(5, 11\), the result is float"),
        (exe, (X,), np.zeros((5, 12)), "out is float64"),
        (exe, (X,), frozen, "out is read-only"),
        (exe, (X,), X.tolist(), "out is a list"),
        (exe, (X,), None, "out is a NoneType"),
        (exe, (part,), part, "out overlaps input 0"),
        (exe, (part,), other, "out overlaps input 0"),
        (exe, (odd,), over, "out overlaps input 0"),  # although it is copied
        (exe, (X,), shared, "out has elements that share memory"),
        (exe, (X,), nd.zeros((1, 1)).broadcast_to((5, 12)), "out has elements that share memory"),
        (two, (X,), (np.zeros_like(X),), "out must be a tuple of 2"),
        (two, (X,), (part, other), "array 1 of out overlaps array 0 of out"),
        (exe, (X[:2],), np.zeros_like(X), "compiled for"),
    ]:  # fmt: skip
        with pytest.raises(InputError, match=message):
            callee(*args, out=out)
    assert np.array_equal(memory, before) and not frozen.any()


def test_a_write_to_a_weight_is_seen(way):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(ndl.Tensor(X))

        def forward(self, x):
            return x + self.w

    model = Model()
    exe = compiled(model, X)
    out = model.w.detach()
    exe(X, out=out)  # w = x + w
    assert np.array_equal(model.w.numpy(), X + X)
    assert np.array_equal(exe(X).numpy(), X + (X + X))
