"""Dilated convolutions on small images, as one of each tap that meets the image."""

import itertools

import numpy as np
import pytest

import needle_tvm
from needle import nn
from needle_tvm.kernels.conv.split_taps import parts, split_taps
from tests.needle_tvm.conftest import tensor
from tests.needle_tvm.kernels.conv.convolutions import conv
from tests.needle_tvm.modules import Spec, check_stays, relax_module


@pytest.mark.parametrize("size", [1, 2, 5, 9])
def test_parts_are_the_products_with_the_image(size):
    for taps, stride, dilation, before, after in itertools.product(
        (1, 2, 3), (1, 2, 3), (1, 2, 6), (0, 1, 6), (0, 2, 7)
    ):
        outputs = (size + before + after - dilation * (taps - 1) - 1) // stride + 1
        if outputs < 1:
            continue
        wanted = {
            (tap, output, output * stride + tap * dilation - before)
            for tap, output in itertools.product(range(taps), range(outputs))
            if 0 <= output * stride + tap * dilation - before < size
        }
        found = {
            (part.tap, output, part.begin + (output - part.first) * stride)
            for part in parts(size, taps, outputs, stride, dilation, before)
            for output in range(part.first, part.end)
        }
        assert found == wanted


def convolutions(monkeypatch, model, x):
    """The number of convolutions after the pass, and the compiled model."""
    from dataclasses import replace

    from needle_tvm.lower import pipeline

    counts = []

    def counted(module, target):
        module = split_taps(module, target)
        text = str(module.script())
        counts.append(text.count("R.nn.conv2d("))
        return module

    counted.__name__ = "split_taps"
    stages = pipeline.PIPELINES["llvm"]
    graph = tuple(counted if each is split_taps else each for each in stages["tuned"].graph)
    monkeypatch.setitem(
        pipeline.PIPELINES, "llvm", {**stages, "tuned": replace(stages["tuned"], graph=graph)}
    )
    return needle_tvm.compile(model, x, recompile=True), counts[0]


@pytest.mark.parametrize(
    ("options", "shape", "split"),
    [
        ({"kernel_size": 3, "padding": 12, "dilation": 12}, (1, 96, 14, 14), True),
        ({"kernel_size": 3, "padding": 9, "dilation": 9}, (2, 64, 11, 13), True),
        ({"kernel_size": 3, "padding": 8, "dilation": 8, "stride": 2}, (1, 64, 13, 12), True),
        ({"kernel_size": (3, 5), "padding": (6, 12), "dilation": 6}, (1, 64, 8, 9), True),
        ({"kernel_size": 3, "padding": 2, "dilation": 2}, (1, 64, 28, 28), False),
        ({"kernel_size": 3, "padding": 1}, (1, 64, 14, 14), False),
    ],
)
def test_results(monkeypatch, rng, options, shape, split):
    model = nn.Sequential(nn.Conv2d(shape[1], 32, **options), nn.ReLU()).eval()
    x = tensor(rng.standard_normal(shape).astype(np.float32))
    compiled, count = convolutions(monkeypatch, model, x)
    assert (count > 1) == split
    # Sums of up to 1,440 products of numbers below 1, in another order.
    np.testing.assert_allclose(compiled(x).numpy(), model(x).numpy(), rtol=1e-4, atol=2e-5)


FAR = {"dilation": (12, 12), "padding": 12}
STAYS = {
    "groups": (Spec(1, 14, 14, 64), Spec(3, 3, 32, 64), {**FAR, "groups": 2}, 1),
    "weights that are an input": (Spec(1, 14, 14, 64), Spec(3, 3, 64, 64), FAR, 0),
    "no images": (Spec(0, 14, 14, 64), Spec(3, 3, 64, 64), FAR, 1),
    "a function that does not name its parameters": (
        *(Spec(1, 14, 14, 64), Spec(3, 3, 64, 64), FAR, None),
    ),
    "few channels": (Spec(1, 14, 14, 1), Spec(3, 3, 1, 4), FAR, 1),
    "large images": (Spec(1, 96, 96, 64), Spec(3, 3, 64, 64), FAR, 1),
}


@pytest.mark.parametrize("name", STAYS)
def test_what_stays(name):
    *specs, options, params = STAYS[name]
    check_stays(split_taps, relax_module(lambda x, w: conv(x, w, **options), *specs, params=params))
