"""Sizes and expressions of sizes, against Python's integers."""

import copy
import operator
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import needle as ndl
from needle.errors import TraceError
from needle.ops import REGISTRY
from needle.sizes.dims import Dim, Expression, bounds_of, size_of
from needle.sizes.extents import replaced, same

N = Dim("n", max=256)
M = Dim("m", min=2, max=7)
K = Dim("k", min=8, max=64, multiple_of=8)
ARITHMETIC = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
}
LEAVES = st.sampled_from([N, M, K]) | st.integers(-6, 12)
FORMS = st.recursive(
    LEAVES, lambda inner: st.tuples(st.sampled_from(list(ARITHMETIC)), inner, inner), max_leaves=8
)
SIZES = st.fixed_dictionaries({
    N: st.integers(1, 256),
    M: st.integers(2, 7),
    K: st.integers(1, 8).map(lambda times: 8 * times),
})  # fmt: skip


def evaluated(form, sizes):
    if isinstance(form, tuple):
        sign, a, b = form
        return ARITHMETIC[sign](evaluated(a, sizes), evaluated(b, sizes))
    return sizes[form] if isinstance(form, Dim) else form


def expressed(form):
    """The expression, or None if a divisor in it may be 0 or less."""
    try:
        return evaluated(form, {N: N, M: M, K: K})
    except (TraceError, ValueError, ZeroDivisionError):
        return None


@given(FORMS, SIZES)
def test_values_bounds_and_other_forms(form, sizes):
    made = expressed(form)
    if made is None:
        return
    wanted = evaluated(form, sizes)
    assert size_of(made, sizes) == wanted
    low, high = bounds_of(made)
    assert low <= wanted <= high
    if isinstance(made, Expression):
        assert made.built(sizes.__getitem__, operator.floordiv) == wanted
        names = {dim.name: size for dim, size in sizes.items()}
        assert eval(repr(made), {}, names) == wanted  # the text of manifests
        assert pickle.loads(pickle.dumps(made)) == made
        assert hash(pickle.loads(pickle.dumps(made))) == hash(made)
        assert copy.deepcopy(made) is made


@given(FORMS, FORMS, SIZES, st.sampled_from(["lt", "le", "gt", "ge", "eq", "ne"]))
def test_decided_comparisons_are_right(a, b, sizes, name):
    left, right = expressed(a), expressed(b)
    if left is None or right is None:
        return
    compare = getattr(operator, name)
    try:
        answer = compare(left, right)
    except TraceError:
        return
    assert answer is compare(evaluated(a, sizes), evaluated(b, sizes))


@given(FORMS, FORMS)
def test_equal_forms_are_equal_and_hash_equal(a, b):
    left, right = expressed(a), expressed(b)
    if left is not None and right is not None:
        assert same(left + right, right + left) and same(left * right, right * left)
        assert hash(left + right) == hash(right + left)
        assert same(left + right - right, left)
        assert same((left + 3) * right, left * right + 3 * right)


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (N + N, 2 * N),
        ((N + 1) - 1, N),
        ((4 * N) // 4, N),
        ((4 * N + 3) // 4, N),
        (K // 8 * 8, K),
        (K % 8, 0),
        ((K + 3) % 8, 3),
        ((N * M) // N, M),
        (((N + 1) * M) // (N + 1), M),
        (N // 2 // 3, N // 6),
        ((N // 2 + 1) // 3, (N + 2) // 6),
        ((6 * N) // 4, (3 * N) // 2),
        (N - N, 0),
        (N * 0, 0),
        (M // 8, 0),
        (N**2, N * N),
        (N**0, 1),
        (-(-N // 2), N - N // 2),
        (np.int64(2) * N + np.int64(1), 2 * N + 1),
    ],
)
def test_one_form(found, wanted):
    assert found == wanted and hash(found) == hash(wanted)
    assert type(found) is type(wanted)


def test_a_dim_stays_itself():
    assert (N + 1) - 1 is N and copy.copy(N) is N and pickle.loads(pickle.dumps(N)) == N
    assert N == Dim("n", min=1, max=256) and N != 257
    with pytest.raises(AttributeError, match="'n' cannot be changed"):
        N.max = 3


def test_bounds_beyond_single_terms():
    assert (N % 8).bounds == (0, 7)
    assert (N - N // 2).bounds == (1, 128)  # the halves of an axis
    assert ((N + 7) // 8 * 8 - N).bounds == (0, 7)


def test_multiples_round_the_ends():
    dim = Dim("b", min=5, max=63, multiple_of=8)
    assert (dim.min, dim.max) == (8, 56)


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"name": "2n", "max": 3}, ValueError, "'2n' is not a Python identifier"),
        ({"name": 3, "max": 3}, ValueError, "3 is not a Python identifier"),
        ({"name": "n", "max": "3"}, TypeError, "'n': max '3' is not an int"),
        ({"name": "n", "max": True}, TypeError, "max True is not an int"),
        ({"name": "n", "max": 3, "min": 0}, ValueError, "min 0 is not from 1"),
        ({"name": "n", "max": 2**31}, ValueError, "max 2147483648 is not from 1"),
        ({"name": "n", "max": 3, "min": 4}, ValueError, "no multiple of 1 is from 4 to 3"),
        ({"name": "n", "max": 9, "min": 7, "multiple_of": 5}, ValueError, "no multiple of 5"),
        ({"name": "n", "max": 9, "multiple_of": 0}, ValueError, "multiple_of 0 is not from 1"),
        ({"name": "n"}, TypeError, "max"),
    ],
)
def test_arguments_of_a_dim(arguments, error, match):
    with pytest.raises(error, match=match):
        Dim(**arguments)


USES = {
    "int": (lambda n: int(n), "int()"),
    "float": (lambda n: float(n), "float()"),
    "range": (lambda n: range(n), "range()"),
    "index": (lambda n: [1, 2][n], "an index"),
    "numpy": (lambda n: np.zeros((n, 2)), "an index"),
    "if": (lambda n: 1 if n > 8 else 2, "whether n > 8"),
    "max": (lambda n: max(n, 8), "whether 8 > n"),
    "in": (lambda n: n in (1, 2), "whether n == 1"),
    "bool": (lambda n: bool(n - 1), "whether n - 1 == 0"),
    "divide": (lambda n: range(n / 2), "// gives a size"),
    "divides": (lambda n: ndl.zeros(2 / n), "// gives a size"),
    "root": (lambda n: float(n**0.5), "float()"),
    "compared": (lambda n: n**-0.5 < 1, "a comparison"),
    "divisor": (lambda n: 7 // (n - 1), "whether the divisor n - 1 is above 0"),
}


@pytest.mark.parametrize("use", USES)
def test_whatever_needs_the_number_is_refused(use):
    call, words = USES[use]
    with pytest.raises(TraceError) as caught:
        call(N)
    text = str(caught.value)
    # The dim, the use, the line of this file that asks, and what to do.
    assert "n (1 to 256)" in text and words in text
    assert f"test_dims.py:{call.__code__.co_firstlineno} (" in text
    assert "choose bounds of the Dim that decide it" in text


def test_a_divisor_may_be_negative_and_not_0():
    for divisor in (-1, -2, -7, -N):
        for numerator in (N, 3 * N + 1, 5 - N, N // 3):
            quotient, rest = numerator // divisor, numerator % divisor
            for value in (1, 2, 9, 256):
                of = {N: value}
                over, by = size_of(numerator, of), size_of(divisor, of)
                assert (size_of(quotient, of), size_of(rest, of)) == divmod(over, by)
    with pytest.raises(ValueError, match="divided by 0"):
        N // 0


def test_other_objects_are_not_extents():
    for operation in (operator.add, operator.mul, operator.floordiv, operator.lt):
        with pytest.raises(TypeError):
            operation(N, None)
    assert (N == "n") is False and (N != None) is True  # noqa: E711


def test_replaced_reaches_into_ops_and_named_tuples():
    op = REGISTRY["reshape"]((N, 4))
    made = replaced(op, lambda each: each.value({N: 3}))
    assert made.shape == (3, 4) and type(made) is type(op)
    spec = ndl.ops.Reshape((2, 4))
    assert replaced(spec, lambda each: 0) is spec
