"""Recurrent layers at every stage."""

import numpy as np
import pytest

import needle as ndl
import needle_tvm
from needle import nn
from needle_tvm.check import parity
from needle_tvm.stages import STAGES
from tests.needle_tvm.conftest import tensor

pytestmark = pytest.mark.slow

CASES = {
    "rnn_cell": (lambda: nn.RNNCell(5, 7), "cell", 1),
    "lstm_cell": (lambda: nn.LSTMCell(5, 7), "cell", 2),
    "rnn": (lambda: nn.RNN(5, 7, 2), 2, 1),
    "rnn_relu": (lambda: nn.RNN(5, 7, 1, False, "relu"), 1, 1),
    "lstm": (lambda: nn.LSTM(5, 7, 2), 2, 2),
    "gru": (lambda: nn.GRU(5, 7, 2), 2, 1),
    "rnn_wide": (lambda: nn.RNN(5, 40, 1, nonlinearity="relu"), 1, 1),
    "gru_wide": (lambda: nn.GRU(5, 40, 1, bias=False), 1, 1),
    "lstm_no_bias": (lambda: nn.LSTM(5, 7, 1, bias=False), 1, 2),
}


@pytest.mark.parametrize("with_state", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_recurrent_layers_compile(rng, case, with_state):
    make, layers, parts = CASES[case]
    ndl.manual_seed(1)
    model = make().eval()

    def draw(*shape):
        return tensor(rng.standard_normal(shape).astype(np.float32))

    x = draw(3, 5) if layers == "cell" else draw(4, 3, 5)
    width = 40 if case.endswith("wide") else 7
    shape = (3, width) if layers == "cell" else (layers, 3, width)
    inputs = [x]
    if with_state:
        state = tuple(draw(*shape) for _ in range(parts))
        inputs.append(state if parts == 2 else state[0])
    stages = {stage: needle_tvm.compile(model, *inputs, stage=stage) for stage in STAGES}
    if not with_state or parts == 1:  # the parity ladder takes only tensors, not tuples
        for result in parity.ladder(model, inputs, {"eager": None, **stages}):
            assert result.ok, result
    with ndl.no_grad():
        expected = model(*inputs)
    for executable in stages.values():
        same_nesting(executable(*inputs), expected)


def same_nesting(found, expected):
    if isinstance(expected, tuple):
        assert isinstance(found, tuple) and len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            same_nesting(a, b)
    else:
        np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-4, atol=1e-5)
