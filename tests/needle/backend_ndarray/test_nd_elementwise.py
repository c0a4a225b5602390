"""Every op of the native table against the reference device: dtypes, broadcasting, special values.

Movement, comparison and basic arithmetic must agree bit for bit, and transcendental functions
within the units in the last place that accuracy.py states.
"""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from needle import backend_ndarray as nd
from needle.backend_ndarray.accuracy import ULPS
from needle.backend_ndarray.accuracy import ulps as stated
from needle.backend_ndarray.dtypes import INTEGER, astype, finfo
from tests.needle.backend_ndarray.drawing import (
    DTYPES,
    FLOATS,
    HALVES,
    NATIVE,
    OF_INTEGERS,
    arrays,
    layouts,
    plain,
    same,
    seeds,
    values,
)
from tests.needle.backend_ndarray.truth import ulps, wider

native = NATIVE.kernels
reference = nd.cpu_numpy().kernels
ERRORS = (TypeError, ValueError, OverflowError)


def to_reference(a):
    view = a.view
    return reference.as_strided(
        reference.from_numpy(a.numpy()),
        view.shape,
        nd.array(a.numpy(), device=nd.cpu_numpy()).strides,
        0,
    )


def agree(name, got, expected):
    got, expected = native.to_numpy(got), reference.to_numpy(expected)
    assert got.dtype == expected.dtype and got.shape == expected.shape
    if name not in ULPS or got.dtype.name not in FLOATS:
        if got.dtype.name in FLOATS and name in ("relu", "maximum", "minimum", "sign"):
            # the sign of zero is not specified
            got, expected = plain(got) + 0.0, plain(expected) + 0.0
        same(got, expected)
        return
    if got.dtype.name in HALVES:
        # Both are rounded from float32, so they are at most neighbours.
        finite = np.isfinite(expected)
        np.testing.assert_array_equal(plain(got[~finite]), plain(expected[~finite]))
        # The largest number has no spacing, as there is none beyond it.
        largest = np.nextafter(np.asarray(finfo(got.dtype.name).max, got.dtype), got.dtype.type(0))
        spacing = np.spacing(np.minimum(np.abs(expected[finite]), largest)).astype("float64")
        error = np.abs(got[finite].astype("float64") - expected[finite].astype("float64")) / spacing
        assert not error.size or error.max() <= 1
        return
    # Each of the two may have the error that the table states.
    off = ulps(got, expected.astype(wider(expected.dtype)))
    assert not off.size or off.max() <= 2 * stated(name, got.dtype.name)


def check(name, *operands):
    """Check that the native and the reference device give equal results, or both an error."""
    ours = [o.view if isinstance(o, nd.NDArray) else o for o in operands]
    theirs = [to_reference(o) if isinstance(o, nd.NDArray) else o for o in operands]
    try:
        expected = getattr(reference, name)(*theirs)
    except ERRORS:
        with pytest.raises(ERRORS):
            getattr(native, name)(*ours)
        return
    agree(name, getattr(native, name)(*ours), expected)


@given(arrays(), st.sampled_from(native.UNARY))
def test_unary(pair, name):
    check(name, pair[1])


@st.composite
def broadcastable(draw):
    rng = np.random.default_rng(draw(seeds))
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    operands = []
    for _ in range(2):
        own = [1 if rng.random() < 0.25 else n for n in shape][draw(st.integers(0, len(shape))) :]
        x = values(rng, own, draw(st.sampled_from(DTYPES)))
        order = draw(st.permutations(range(x.ndim)))
        x = x.transpose(order)  # transposed back later: the same shape with other strides
        back = np.argsort(order) if order else []
        operands.append(nd.array(x.copy(), device=NATIVE).permute(tuple(int(i) for i in back)))
    return operands


@given(broadcastable(), st.sampled_from(native.BINARY))
def test_binary(operands, name):
    check(name, *operands)


scalars = st.one_of(
    st.booleans(),
    st.integers(-5, 5),
    st.sampled_from([2**31, -(2**31), 2**40, 2**63, -(2**70)]),
    st.sampled_from([0.0, -0.0, 0.5, -1.5, 2.0, 3.0, float("inf"), float("nan"), 1e300]),
)


@given(arrays(), scalars, st.sampled_from(native.BINARY), st.booleans())
def test_scalar(pair, scalar, name, left):
    if name == "power" and isinstance(scalar, int) and abs(scalar) > 5:
        scalar = 3
    if (
        isinstance(scalar, int)
        and abs(scalar) > 5
        and (name.startswith("logical") or pair[0].dtype == bool)
    ):
        scalar = 1  # NumPy may have no dtype for it, the native device needs none
    if name == "power" and scalar == 0.5:
        # NumPy versions disagree whether -inf ** 0.5 is NaN (as sqrt) or inf (as pow).
        assume(left or pair[0].dtype.name not in FLOATS or not np.isneginf(plain(pair[0])).any())
    check(name, *((scalar, pair[1]) if left else (pair[1], scalar)))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("step", [1, 2])
def test_square_roots_as_powers_are_those_of_pow(dtype, step):
    """Which differ from sqrt's at -inf and -0: C's pow gives inf and +0."""
    x = np.repeat(np.float32([-np.inf, -0.0, 0.0, 4.0, np.inf, -1.0, np.nan]), 5 * step)
    roots = (nd.array(x, dtype=dtype, device=NATIVE)[::step] ** 0.5).astype("float64").numpy()
    expected = np.repeat([np.inf, 0.0, 0.0, 2.0, np.inf, np.nan, np.nan], 5)
    np.testing.assert_array_equal(roots, expected)
    assert not np.signbit(roots[~np.isnan(roots)]).any()


@given(st.data())
def test_where(data):
    a, b = data.draw(broadcastable())
    _, mask = data.draw(arrays(dtypes=("bool", "float32"), shape=(1,) * max(a.ndim, 1)))
    if mask.ndim > a.ndim + 1:
        mask = mask.flat
    check("where", mask, a, b)


@given(st.data(), st.sampled_from(DTYPES))
def test_cast(data, dtype):
    x, a = data.draw(arrays())
    if x.dtype.name in FLOATS and dtype in INTEGER:
        inside = np.abs(plain(x)) < 2.0 ** (63 if dtype == "int64" else 31)
        x = np.where(inside, x, x.dtype.type(0))  # NumPy leaves casts of the others undefined
        x, a = data.draw(layouts(x))
    with np.errstate(all="ignore"):
        same(a.astype(dtype), astype(x, dtype))


def test_every_op_is_a_method_or_operator():
    """A row added to the table must also be added to NDArray."""
    operators = {
        "negative": "__neg__", "add": "__add__", "subtract": "__sub__", "multiply": "__mul__",
        "divide": "__truediv__", "power": "__pow__", "equal": "__eq__", "not_equal": "__ne__",
        "less": "__lt__", "less_equal": "__le__", "greater": "__gt__", "greater_equal": "__ge__",
    }  # fmt: skip
    for name in (*native.UNARY, *native.BINARY):
        method = getattr(nd.NDArray, operators.get(name, name))
        dtype = "int32" if name in OF_INTEGERS else "float32"
        a = nd.full((2,), 0.5, dtype, device=NATIVE)
        result = method(a) if name in native.UNARY else method(a, a)
        arguments = [a.view] if name in native.UNARY else [a.view, a.view]
        same(result, native.to_numpy(getattr(native, name)(*arguments)))


@pytest.mark.parametrize("bad", ["x", None, 1j, [1, 2], object()])
def test_bad_operands(device, bad):
    a = nd.ones((2,), device=device)
    for operation in (lambda: a + bad, lambda: bad * a, lambda: a < bad, lambda: a.maximum(bad)):
        try:
            result = operation()
        except TypeError:
            continue
        assert result is NotImplemented


def test_numpy_operands(device):
    a = nd.ones((2, 1), device=device)
    row = np.arange(3, dtype=np.float32)
    same(row - a, row - np.ones((2, 1), np.float32))
    assert (np.float64(2) * a).dtype == "float32"  # NumPy scalars are weak
    assert (a / np.int64(2)).dtype == "float32"


def test_mixed_devices():
    with pytest.raises(ValueError, match="different devices"):
        nd.ones((2,), device=NATIVE) + nd.ones((2,), device=nd.cpu_numpy())
