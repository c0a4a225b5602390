"""Error bounds of results allow what is unspecified, and no more."""

import numpy as np
import pytest

import needle as ndl
from needle import ops
from needle.trace import trace
from needle_tvm.frontend.bounds import Evaluation
from needle_tvm.frontend.float64_values import evaluate


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def evaluated(function, *arrays):
    graph = trace(function, *map(ndl.Tensor, arrays))
    return Evaluation(graph, arrays, {})


@pytest.mark.parametrize("number", [np.inf, np.nan])
def test_a_convolution_of_infinite_weights_tells_nothing(rng, number):
    def function(g, w):
        return ops.ConvInput(size=(6, 7), stride=(3, 2), padding=(0, 1))(g, w)

    g, w = rng.uniform(-1, 1, (1, 2, 4, 2)), rng.uniform(-1, 1, (1, 3, 1, 2))
    evaluation = evaluated(function, g, w)
    right = function(ndl.Tensor(g), ndl.Tensor(w)).numpy()
    assert evaluation.difference([right]) is None
    assert evaluation.difference([right + 0.01]) is not None
    w[0, 0, 0, 0] = number
    evaluation = evaluated(function, g, w)
    found = function(ndl.Tensor(g), ndl.Tensor(w)).numpy()
    assert evaluation.difference([found]) is None
    for other in (np.nan, 0.0):
        assert evaluation.difference([np.full_like(found, other)]) is None


def test_nor_does_one_whose_padding_meets_infinite_weights(rng):
    def function(x, w):
        return ops.Conv(padding=(1, 1))(x, w)

    x, w = rng.uniform(-1, 1, (1, 1, 4, 1)), np.full((3, 3, 1, 1), np.inf)
    evaluation = evaluated(function, x, w)
    for number in (np.nan, np.inf, 0.0):
        assert evaluation.difference([np.full((1, 1, 4, 1), number)]) is None


def test_a_rounding_that_matters_is_let_through_and_an_error_is_not(rng):
    x = rng.uniform(-1, 1, (50,)).astype("float32")
    evaluation = evaluated(lambda x: (x + 1000.0) - 1000.0, x)
    rounded = (x + np.float32(1000)) - np.float32(1000)
    assert evaluation.difference([rounded]) is None
    assert evaluation.difference([rounded + np.float32(0.5)]) is not None


def test_the_largest_of_near_equals_may_be_any_of_them():
    x = np.array([[1.0, 1.0 + 1e-7, 0.5], [1.0, 2.0, 0.5]], "float32")
    evaluation = evaluated(lambda x: ops.argmax(x * 1.1, 1), x)
    assert evaluation.difference([np.array([0, 1])]) is None
    assert evaluation.difference([np.array([1, 1])]) is None
    assert evaluation.difference([np.array([0, 0])]) is not None


def test_rows_of_equal_numbers_may_be_summed_up_in_any_order():
    """Adding seven thirds one by one rounds, and dividing by a small deviation shows the error."""
    x = np.full((4, 7), 1 / 3, np.float32)
    one, zero = np.ones(7, np.float32), np.zeros(7, np.float32)
    mean = np.zeros(4, np.float32)
    for column in x.T:
        mean = mean + column
    centred = x - (mean / np.float32(7))[:, None]
    scaled = centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + np.float32(1e-5))
    assert np.abs(scaled).max() > 1e-6
    norm = evaluated(lambda x, w, b: ops.layer_norm(x, w, b), x, one, zero)
    assert norm.difference([scaled]) is None
    assert norm.difference([scaled + np.float32(1e-2)]) is not None


def test_bits_are_those_of_the_tensors_own_dtype(rng):
    """Not those of float64, in which everything else is evaluated."""

    def function(x):
        exponent = ops.bitcast(x) // 16777216
        return exponent, ops.bitcast(ops.bitwise_and(ops.bitcast(x), -65536)) * 3.0

    for dtype, bits in (("float32", "int32"), ("float64", "int64")):
        x = rng.uniform(-3, 3, (50,)).astype(dtype)
        right = [
            x.view(bits) // 16777216,
            (x.view(bits) & -65536).view(dtype) * np.array(3, dtype),
        ]
        evaluation = evaluated(function, x)
        assert evaluation.difference(right) is None
        assert evaluation.difference([right[0] + 1, right[1]]) is not None
        assert evaluation.difference([right[0], x * np.array(3.2, dtype)]) is not None
        values = evaluate(trace(function, ndl.Tensor(x)), [x])
        assert any(np.array_equal(value.numpy(), right[0]) for value in values.values())
