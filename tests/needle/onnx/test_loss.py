"""Losses beside ONNX Runtime and PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

import needle as ndl
from needle.errors import ModelError

pytest.importorskip("onnx")

from .one_node import by_needle, by_onnxruntime, compiled, model_of


def _drawn(rng, shape, ignored, weighted):
    x = rng.standard_normal((3, 5, *shape)).astype("float32")
    target = rng.integers(0, 5, (3, *shape))
    if ignored is not None:
        target = np.where(rng.random(target.shape) < 0.3, ignored, target)
    weight = (rng.random(5).astype("float32") + 0.1,) if weighted else ()
    return (x, target, *weight)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_losses(reduction):
    pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(0)
    for shape in ((), (4,), (2, 3)):
        for ignored in (None, 0, -1, 7):
            for weighted in (False, True):
                inputs = _drawn(rng, shape, ignored, weighted)
                attributes = {"reduction": reduction}
                attributes |= {} if ignored is None else {"ignore_index": ignored}
                for op_type, outputs in (
                    ("NegativeLogLikelihoodLoss", 1),
                    ("SoftmaxCrossEntropyLoss", 2),
                ):
                    model = model_of(op_type, inputs, attributes, 13, outputs)
                    expected = by_onnxruntime(model, inputs)
                    for found, right in zip(by_needle(model, inputs), expected, strict=True):
                        np.testing.assert_allclose(found, right, 1e-5, 1e-5)


def test_compiled_and_gradient():
    """The loss compiles, and trains what comes before it."""
    torch = pytest.importorskip("torch")
    import needle.onnx

    inputs = _drawn(np.random.default_rng(1), (2,), -1, True)
    attributes = {"ignore_index": -1}
    model = model_of("SoftmaxCrossEntropyLoss", inputs, attributes, 13)
    x = torch.tensor(inputs[0], requires_grad=True)
    loss = torch.nn.functional.cross_entropy(
        x, torch.tensor(inputs[1]), torch.tensor(inputs[2]), ignore_index=-1
    )
    loss.backward()
    np.testing.assert_allclose(compiled(model, inputs)[0], loss.detach(), 1e-5)
    mine = ndl.Tensor(inputs[0], requires_grad=True)
    needle.onnx.load(model)(mine, ndl.Tensor(inputs[1]), ndl.Tensor(inputs[2])).backward()
    np.testing.assert_allclose(mine.grad.numpy(), x.grad, 1e-5, 1e-6)


def test_faults_are_named():
    inputs = np.ones((3, 5, 2), "float32"), np.zeros((3, 4), "int64")
    model = model_of("NegativeLogLikelihoodLoss", inputs, {}, 13, dtypes=["float32"])
    with pytest.raises(ModelError, match="targets"):
        by_needle(model, inputs)
    inputs = inputs[0], inputs[1][:, :2]
    model = model_of("SoftmaxCrossEntropyLoss", inputs, {"reduction": "max"}, 13)
    with pytest.raises(ModelError, match="reduction 'max'"):
        by_needle(model, inputs)
