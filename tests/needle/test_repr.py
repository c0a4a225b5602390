"""What `repr` says."""

import numpy as np
import pytest

import needle as ndl
from needle import data, nn, optim


def test_tensors():
    x = ndl.Tensor([[1.0, 2.0]])
    assert repr(x) == (
        "Tensor([[1., 2.]], shape=(1, 2), dtype=float32, device=cpu(), requires_grad=True)"
    )
    assert repr((x * x).sum()) == (
        "Tensor(5., shape=(), dtype=float32, device=cpu(), op=summation)"
    )
    assert repr(ndl.Tensor([1])) == "Tensor([1], shape=(1,), dtype=int64, device=cpu())"
    assert "..." in repr(ndl.zeros(2000)) and "shape=(2000,)" in repr(ndl.zeros(2000))
    assert repr(ndl.ops.topk(x, 1)) == "TensorTuple(float32[1, 1], int64[1, 1])"
    assert repr(nn.Linear(1, 1).bias).startswith("Parameter([[")


def test_a_value_that_was_freed():
    x = ndl.Tensor([1.0])
    y = (x + 1) * 1.5 + 2
    assert repr(y.inputs[0].inputs[0]) == "Tensor(float32[1], op=add_scalar)"


def test_modules_are_trees():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(2, 3, bias=False), nn.ReLU())
            self.heads = [nn.Dropout(0.25)]

    assert repr(Net()).split("\n") == [
        "Net(",
        "  (body): Sequential(",
        "    (modules.0): Linear(2, 3, bias=False)",
        "    (modules.1): ReLU()",
        "  )",
        "  (heads.0): Dropout(p=0.25)",
        ")",
    ]
    assert repr(nn.Transformer(4, 8, 1)).startswith("Transformer(4, batch_first=False, ")
    layer = nn.TransformerEncoderLayer(4, 2, 8, activation="gelu")
    assert repr(layer).startswith("TransformerEncoderLayer(activation=gelu, norm_first=False\n")


def test_optimizers():
    one, two = ndl.nn.Parameter(np.ones((3, 4), "float32")), ndl.nn.Parameter(np.ones(2, "float32"))
    made = optim.SGD([one, two], lr=0.5)
    assert repr(made) == (
        "SGD(lr=0.5, momentum=0.0, dampening=0.0, weight_decay=0.0, nesterov=False, "
        "maximize=False, 14 parameters in 2 tensors)"
    )
    groups = optim.Adam([{"params": [one], "lr": 0.1}, {"params": [two]}])
    first, second = repr(groups).split("\n")[1:3]
    assert first.startswith("  (0): lr=0.1, beta1=") and first.endswith("12 parameters in 1 tensor")
    assert second.startswith("  (1): lr=0.001, ")
    assert repr(groups.param_groups[0]) == f"Group({first.split(': ', 1)[1]})"


def test_schedules_and_averages():
    optimizer = optim.SGD([nn.Parameter(np.ones(2, "float32"))], lr=0.5)
    schedule = optim.StepLR(optimizer, 1)
    schedule.step()
    assert repr(schedule) == "StepLR(step_size=1, gamma=0.1, of SGD: lr 0.05 after 1 steps)"
    assert repr(optim.EMA(optimizer.params, 0.9)) == "EMA(decay=0.9, 1 tensors, 0 updates)"


def test_datasets_and_loaders():
    arrays = data.NDArrayDataset(np.zeros((10, 3, 4)), np.arange(10, dtype="int32"))
    assert repr(arrays) == "NDArrayDataset(10 items, float64[3, 4], int32[])"
    assert repr(data.DataLoader(arrays, 3, shuffle=True, seed=1)) == (
        f"DataLoader({arrays!r}, batch_size=3, shuffle=True, drop_last=False, num_workers=0, "
        "seed=1: 4 batches)"
    )

    class Own(data.Dataset):
        pass

    assert repr(Own([data.RandomCrop(2)])) == "Own(no length, transforms=[RandomCrop(padding=2)])"


@pytest.mark.parametrize("dims", [None, {0: {0: ndl.Dim("n", max=4)}}])
def test_compiled_models(dims, tmp_path):
    needle_tvm = pytest.importorskip("needle_tvm")
    pytest.importorskip("tvm")
    model, x = nn.Linear(2, 3).eval(), ndl.zeros(2, 2)
    compiled = needle_tvm.compile(model, x, dims=dims)
    lines = repr(compiled).split("\n")
    batch = "n" if dims else "2"
    assert lines[:3] == [
        "Executable(",
        f"  inputs:  x float32({batch}, 2)",
        f"  outputs: float32({batch}, 3)",
    ]
    assert ("  sizes:   n is from 1 to 4" in lines) == bool(dims)
    assert "  weights: 2 arrays, 9 numbers" in lines
    assert any(line.startswith("  target:  llvm ") and "tuned, checked" in line for line in lines)
    assert lines[-2].startswith("  size:    ") and lines[-2].endswith(" bytes")
    exported = compiled.export(tmp_path / "out")
    assert f"path:    {exported}" in repr(needle_tvm.load(exported).artifact)
    assert repr(compiled.program).startswith("Program(\n  inputs:  x")


def test_compiled_functions():
    needle_tvm = pytest.importorskip("needle_tvm")
    pytest.importorskip("tvm")
    twice = needle_tvm.jit(lambda x: x * 2)
    assert repr(twice).endswith(": 0 signatures compiled>")
    twice(ndl.zeros(2))
    assert repr(twice).endswith(": 1 signature compiled>")
