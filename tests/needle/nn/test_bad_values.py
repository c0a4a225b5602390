"""Values that a loss or a lookup cannot mean are errors that name them, and so are dtypes."""

import re

import numpy as np
import pytest

import needle as ndl
import needle.course
import needle.nn.functional as F
from needle import nn
from needle.trace import trace

SCORES, STEPS = np.zeros((2, 3), "float32"), np.zeros((4, 2, 3), "float32")
NAN = float("nan")


def tensor(values, device):
    return values if isinstance(values, ndl.Tensor) else ndl.Tensor(np.array(values), device=device)


REFUSED = [
    (F.binary_cross_entropy, ([0.5, 1.5], [0.0, 1.0]), ValueError, "x holds 1.5, .* [0, 1]"),
    (F.binary_cross_entropy, ([-0.25], [1.0]), ValueError, "x holds -0.25"),
    (F.binary_cross_entropy, ([NAN], [1.0]), ValueError, "x holds nan"),
    (F.binary_cross_entropy, ([0.5], [2.0]), ValueError, "y holds 2"),
    (nn.BCELoss(), ([1.5], [1.0]), ValueError, "x holds 1.5"),
    (F.embedding, ([1.0], SCORES), TypeError, "embedding: x is float32; .* integers"),
    (F.embedding, ([True], SCORES), TypeError, "embedding: x is bool"),
    (F.embedding, ([2], SCORES), IndexError, "2"),
    (F.embedding_bag, ([1, 1], SCORES, [0.0, 1.0]), TypeError, "offsets is float32"),
    (F.embedding_bag, ([1, 1], SCORES, [1, 2]), ValueError, "offsets[0] holds 1"),
    (F.embedding_bag, ([1, 1], SCORES, [0, 2, 1]), ValueError, "offsets [0, 2, 1]"),
    (F.embedding_bag, ([1, 1], SCORES, [0, 3]), ValueError, "offsets [0, 3]"),
    (F.cross_entropy, (SCORES, [0.0, 1.5]), ValueError, "cross_entropy: y holds 1.5"),
    (F.cross_entropy, (SCORES, [0.0, NAN]), ValueError, "y holds nan"),
    (F.cross_entropy, (SCORES, [True, False]), TypeError, "y is bool"),
    (F.cross_entropy, (SCORES, [0, 3]), IndexError, "3"),
    (F.nll_loss, (SCORES, [0.5, 1.0]), ValueError, "nll_loss: y holds 0.5"),
    (F.nll_loss, (SCORES, [0, -1]), IndexError, "-1"),
    (nn.SoftmaxLoss(), (SCORES, [0.5, 1.0]), ValueError, "SoftmaxLoss: y holds 0.5"),
    (lambda x: ndl.one_hot(x, 3), ([1.5],), ValueError, "one_hot: a holds 1.5"),
    (lambda x: ndl.one_hot(x, 3), ([3],), IndexError, "3"),
    (F.ctc_loss, (STEPS, [[1.5], [1.0]], [4, 4], [1, 1]), ValueError, "targets holds 1.5"),
    (F.ctc_loss, (STEPS, [[3], [1]], [4, 4], [1, 1]), IndexError, "targets holds 3"),
    (F.ctc_loss, (STEPS, [[1], [1]], [4, 5], [1, 1]), ValueError, "input_lengths holds 5"),
    (F.ctc_loss, (STEPS, [[1], [1]], [4, 4], [1, 2]), ValueError, "target_lengths holds 2"),
    (F.ctc_loss, (STEPS, [[1], [1]], [4, 3.5], [1, 1]), ValueError, "input_lengths holds 3.5"),
    (ndl.bernoulli, ([0.5, 1.5],), ValueError, "p has 1.5"),
    (lambda x: ndl.multinomial(x, 1), ([0.5, -1.5],), ValueError, "least weight is -1.5"),
    (lambda x, i: ndl.take(x, i, 0), (SCORES, [0.0]), TypeError, "the index is float32"),
    (lambda x, i: ndl.ops.gather(x, 0, i), (SCORES, [[0.0] * 3]), TypeError, "float32"),
]  # fmt: skip


@pytest.mark.parametrize(("function", "inputs", "error", "words"), REFUSED)
def test_a_value_that_makes_no_sense_is_refused(function, inputs, error, words, device):
    given = [tensor(np.float32(x) if _floats(x) else x, device) for x in inputs]
    with pytest.raises(error, match=re.sub(r"([\[\]])", r"\\\1", words)):
        function(*given)


def _floats(x):
    return np.array(x).dtype == "float64"


def test_padding_of_ctc_targets_may_be_anything(device):
    log_probs = F.log_softmax(tensor(np.random.default_rng(0).normal(size=(5, 2, 3)), device))
    losses = [
        F.ctc_loss(log_probs, [[1, 2], [2, padding]], [5, 5], [2, 1]).item()
        for padding in (0, 7, -1)
    ]
    assert losses[0] == losses[1] == losses[2]


def test_dtypes_are_refused_while_tracing(device):
    layer, loss = nn.Embedding(4, 2, device=device).eval(), nn.BCELoss().eval()
    with pytest.raises(TypeError, match="x is float32"):
        trace(lambda m, x: m(x), layer, tensor(np.ones(2, "float32"), device))
    trace(lambda m, x: m(x, x), loss, tensor(np.full(2, 1.5, "float32"), device))


def test_the_course_looks_rows_up_by_whole_floats(device):
    layer = nn.Embedding(4, 2, device=device)
    needle.course.install()
    try:
        by_floats = layer(tensor(np.array([[1.0, 3.0]], "float32"), device))
        with pytest.raises(ValueError, match=r"holds 1\.5"):
            layer(tensor(np.array([1.5], "float32"), device))
    finally:
        needle.course.uninstall()
    by_ints = layer(tensor(np.array([[1, 3]]), device))
    np.testing.assert_array_equal(by_floats.numpy(), by_ints.numpy())
