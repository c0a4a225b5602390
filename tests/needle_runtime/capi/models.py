"""Artifacts for the tests of the C and C++ interface.

python -m tests.needle_runtime.capi.models FOLDER
"""

import sys
from pathlib import Path

import numpy as np

import needle as ndl
import needle_tvm
from needle import nn
from tests.needle_tvm.conftest import make_mlp, tensor

DTYPES = ("int8", "int16", "int32", "int64", "uint8", "float16", "bfloat16", "float32", "float64")
BATCH, HIDDEN, EPOCHS = 32, 48, 4  # of the digits

HALVES = ("float16", "bfloat16")


class Pair(nn.Module):
    """A model with several inputs and outputs, a scalar among them."""

    def forward(self, a, b):
        return a @ b, (a * 2.0).sum(), b


class Tied(nn.Module):
    """A model whose two weights are one parameter, and that picks rows by index."""

    def __init__(self):
        super().__init__()
        self.rows = nn.Embedding(7, 5)
        self.read = nn.Linear(5, 7, bias=False)
        self.read.weight = self.rows.weight

    def forward(self, numbers):
        return self.read(self.rows(numbers))


def array(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def write_small(folder):
    """Write models of a few layers, which the tests of single functions use."""
    ndl.manual_seed(0)
    mlp = make_mlp(16, 20, 5)
    needle_tvm.compile(mlp, tensor(array(4, 16))).export(folder / "mlp")
    rows = {"x": {0: ndl.Dim("n", max=64)}}
    needle_tvm.compile(mlp, tensor(array(4, 16)), dims=rows).export(folder / "open")
    two = (tensor(array(3, 4)), tensor(array(4, 2, seed=1)))
    needle_tvm.compile(Pair().eval(), *two, stage="fused").export(folder / "pair")
    numbers = tensor(np.arange(6, dtype=np.int64) % 5)
    needle_tvm.compile(Tied().eval(), numbers, stage="fused").export(folder / "tied")
    for dtype in HALVES:
        one = ndl.Tensor(np.ones(1), requires_grad=False).astype(dtype)
        compiled = needle_tvm.compile(lambda numbers: ndl.one_hot(numbers, 7), one, stage="fused")
        compiled.export(folder / f"classes-{dtype}")
    for dtype in DTYPES:
        values = np.arange(1, 7).reshape(2, 3).astype(np.float32)
        x = ndl.Tensor(values, requires_grad=False).astype(dtype)
        needle_tvm.compile(lambda x: x + x, x, stage="fused").export(folder / f"dtype-{dtype}")


def write_images(folder):
    """Write the images and labels of the digits as files of numbers; return both data sets."""
    sets = ndl.data.DigitsDataset(train=True), ndl.data.DigitsDataset(train=False)
    for name, data in zip(("train", "test"), sets, strict=True):
        data.x.astype("<f4").tofile(folder / f"{name}_images.f32")
        data.y.astype("<i4").tofile(folder / f"{name}_labels.i32")
    return sets


def digits_step():
    """A classifier of the digits, and a compiled step that trains it."""
    ndl.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, HIDDEN), nn.ReLU(), nn.Dropout(0.1), nn.Linear(HIDDEN, 10))
    optimizer = ndl.optim.AdamW(model.parameters(), lr=3e-3)

    @needle_tvm.jit
    def step(x, y):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return model, step


def batches(data):
    """The whole batches of a data set, in order."""
    for at in range(0, len(data.y) - BATCH + 1, BATCH):
        yield data.x[at : at + BATCH], data.y[at : at + BATCH]


def export_reader(model, path, **options):
    """Export the classifier, for up to 512 images at a time."""
    x, rows = ndl.Tensor(np.zeros((2, 64), np.float32)), {0: {0: ndl.Dim("n", max=512)}}
    needle_tvm.compile(model.eval(), x, dims=rows, **options).export(path)


def write_digits(folder):
    """Write a step that trains a classifier of digits, the classifier after EPOCHS epochs, and the
    images as files of numbers."""
    train, _ = write_images(folder)
    model, step = digits_step()
    step(*next(batches(train)))
    step.export(folder / "step")
    for _ in range(EPOCHS):
        for x, y in batches(train):
            step(x, y)
    export_reader(model, folder / "reader")


if __name__ == "__main__":
    write_small(Path(sys.argv[1]))
    write_digits(Path(sys.argv[1]))
