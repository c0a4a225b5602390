"""Every nn module, tuned and at one of the other stages (recurrent ones are in
test_rnn_compiled.py, those that PyTorch has too in test_torch_layers_compiled.py)."""

import inspect
import re

import numpy as np
import pytest

import needle as ndl
import needle_tvm
from needle import nn
from needle_tvm.stages import STAGES
from tests import torch_layers

IMAGE, ROWS, SEQUENCE, LABELS = (2, 4, 6, 5), (3, 8), (2, 5, 8), "labels"

# name: (module, shapes of its inputs)
CASES = {
    "AdaptiveLogSoftmaxWithLoss": (
        lambda: nn.AdaptiveLogSoftmaxWithLoss(8, 8, [3, 5], div_value=2.0), [ROWS, LABELS]
    ),
    "AttentionLayer": (lambda: nn.AttentionLayer(8, 2, 4), [SEQUENCE]),
    "AttentionLayer, cross": (
        lambda: nn.AttentionLayer(8, 2, 4, k_features=6, v_features=6, causal=False),
        [SEQUENCE, (2, 7, 6), (2, 7, 6)],
    ),
    "AvgPool2d": (lambda: nn.AvgPool2d(3, 2, 1), [IMAGE]),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(8), [ROWS]),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(4), [IMAGE]),
    "Conv": (lambda: nn.Conv(4, 6, 3), [IMAGE]),
    "Conv, strided": (lambda: nn.Conv(4, 6, 3, 2, bias=False), [IMAGE]),
    "Conv, dilated": (lambda: nn.Conv(4, 6, (3, 2), padding=(2, 0), dilation=2), [IMAGE]),
    "Conv, grouped": (lambda: nn.Conv(4, 6, 3, groups=2), [IMAGE]),
    "Conv, depthwise": (lambda: nn.Conv(4, 4, 3, groups=4), [IMAGE]),
    "CrossEntropyLoss": (lambda: nn.CrossEntropyLoss(label_smoothing=0.1), [ROWS, LABELS]),
    "Dropout": (lambda: nn.Dropout(0.3), [ROWS]),
    "Dropout2d": (lambda: nn.Dropout2d(0.3), [IMAGE]),
    "Embedding": (lambda: nn.Embedding(8, 3), [LABELS]),
    "Flatten": (lambda: nn.Flatten(), [IMAGE]),
    "GELU": (lambda: nn.GELU(), [ROWS]),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), [IMAGE]),
    "Identity": (lambda: nn.Identity(), [ROWS]),
    "InstanceNorm3d": (lambda: nn.InstanceNorm3d(4, affine=True), [(2, 4, 3, 2, 5)]),
    "LayerNorm1d": (lambda: nn.LayerNorm1d(8), [SEQUENCE]),
    "Linear": (lambda: nn.Linear(8, 3), [SEQUENCE]),
    "MSELoss": (lambda: nn.MSELoss(), [ROWS, ROWS]),
    "MaxPool2d": (lambda: nn.MaxPool2d(3, 2, 1), [IMAGE]),
    "MultiHeadAttention": (lambda: nn.MultiHeadAttention(causal=True), [(2, 3, 5, 4)] * 3),
    "ReLU": (lambda: nn.ReLU(), [ROWS]),
    "Residual": (lambda: nn.Residual(nn.Linear(8, 8)), [ROWS]),
    "RotaryEmbedding": (lambda: nn.RotaryEmbedding(6), [SEQUENCE]),
    "Sequential": (
        lambda: nn.Sequential(nn.Conv(4, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2)),
        [IMAGE],
    ),
    "SiLU": (lambda: nn.SiLU(), [ROWS]),
    "Sigmoid": (lambda: nn.Sigmoid(), [ROWS]),
    "SinusoidalEncoding": (lambda: nn.SinusoidalEncoding(8), [SEQUENCE]),
    "SoftmaxLoss": (lambda: nn.SoftmaxLoss(), [ROWS, LABELS]),
    "Tanh": (lambda: nn.Tanh(), [ROWS]),
    "Transformer": (
        lambda: nn.Transformer(8, 12, 2, num_head=2, dim_head=4, sequence_len=6), [(5, 2, 8)]
    ),
    "TransformerLayer": (lambda: nn.TransformerLayer(8, 2, 4, 12), [SEQUENCE]),
}  # fmt: skip
RECURRENT = {"RNN", "RNNCell", "LSTM", "LSTMCell"}
# The code of a layer beside PyTorch's for other axes, and layers that do nothing in eval mode.
KINDS = ("Zero", "Constant", "Reflection", "Replication", "Circular")
PADS = {f"{kind}Pad{n}d" for kind in KINDS for n in (1, 2, 3)}
IN_TRAINING = {"Dropout1d", "Dropout3d", "AlphaDropout", "FeatureAlphaDropout"}
WITHOUT_FORWARD = {"ModuleList", "ModuleDict", "ParameterList", "ParameterDict"}
BESIDE_TORCH = {re.split(r"\W", name)[0] for name in torch_layers.CASES}


def test_no_module_is_left_out():
    public = {
        name
        for name, value in vars(nn).items()
        if inspect.isclass(value) and issubclass(value, nn.Module) and value is not nn.Module
    }
    here = {case.split(",")[0] for case in CASES}
    like = RECURRENT | PADS | IN_TRAINING
    assert here | like | WITHOUT_FORWARD | BESIDE_TORCH == public


def draw(rng, shape):
    if shape == LABELS:
        return ndl.Tensor(rng.integers(0, 8, ROWS[0]), requires_grad=False)
    values = rng.standard_normal(shape).astype("float32")
    return ndl.Tensor(values, requires_grad=False)


def randomized(module, rng):
    """Set parameters and statistics to values other than 0 and 1."""
    for _, value in module.named_tensors():
        drawn = rng.uniform(0.2, 1, value.shape).astype(value.dtype)
        value.data = ndl.Tensor(drawn, requires_grad=False)
    return module.eval()


def check(rng, case, stage):
    make, shapes = CASES[case]
    module = randomized(make(), rng)
    inputs = [draw(rng, shape) for shape in shapes]
    with ndl.no_grad():
        expected = module(*inputs)
    expected = expected if isinstance(expected, tuple) else (expected,)
    found = needle_tvm.compile(module, *inputs, stage=stage)(*inputs)
    found = found if isinstance(found, tuple) else (found,)
    for a, b in zip(found, expected, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_a_module_compiles(rng, case):
    check(rng, case, "tuned")


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_module_compiles_at_another_stage(rng, case):
    """One of the two, another for the next module."""
    check(rng, case, STAGES[list(CASES).index(case) % 2])


def test_a_class_out_of_range_makes_a_compiled_loss_nan():
    """Compiled code cannot raise what the eager function raises."""
    x = ndl.randn(4, 3)
    loss = needle_tvm.jit(lambda x, y: nn.functional.cross_entropy(x, y))
    right, ignored = ndl.tensor([0, 1, 2, 0]), ndl.tensor([0, -100, 2, 0])
    for y in (right, ignored):
        assert loss(x, y).item() == pytest.approx(nn.functional.cross_entropy(x, y).item(), 1e-5)
    for wrong in (3, -1):
        assert np.isnan(loss(x, ndl.tensor([0, 1, wrong, 0])).item())


def test_the_statistics_of_batch_norm_are_sums_of_sums():
    """The mean of 4,096 equal numbers: two sums of 64 terms are at most 127 roundings away, and
    adding one number after the other is further away. The gradient uses this mean."""
    x, weight = np.full((64, 3, 8, 8), 0.1, np.float32), np.ones(3, np.float32)
    exact, bound = np.float64(x.flat[0]), 127 * np.finfo(np.float32).eps / 2 * 0.1
    assert abs(np.add.accumulate(x.ravel()[:4096])[-1] / 4096 - exact) > bound
    found = needle_tvm.compile(
        lambda x, w: ndl.batch_norm_train(x, w, w, 1).tuple()[1], *map(ndl.Tensor, (x, weight))
    )(x, weight)
    assert np.abs(found.numpy() - exact).max() <= bound
