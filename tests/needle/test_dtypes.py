"""Dtypes of arrays and tensors against docs/dtypes.md, NumPy and the Array API."""

import itertools

import numpy as np
import pytest

import needle as ndl
from needle import backend_ndarray as nd
from needle.autograd.dtypes import scalar_dtype
from needle.backend_ndarray.dtypes import DTYPES, FLOATING, ITEMSIZE, result_type
from needle.serialize import _DTYPES as FILE_DTYPES
from tests import ROOT

ORDER = (
    "bool", "int8", "uint8", "int16", "uint16", "int32", "int64",
    "float16", "bfloat16", "float32", "float64",
)  # fmt: skip
PAIRS = list(itertools.product(ORDER, ORDER))
SCALARS = (True, 1, 1.0)
FILE_DTYPES_BY_NAME = {np.dtype(code).name: name for name, code in FILE_DTYPES.items()}


def tables():
    """The tables of docs/dtypes.md as lists of rows, each a list of cells, including headers."""
    text = ROOT / "docs" / "dtypes.md"
    found, rows = [], []
    for line in [*text.read_text(encoding="utf-8").splitlines(), ""]:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
        elif rows:
            found.append([row for row in rows if not set("".join(row)) <= {"-"}])
            rows = []
    return found


def test_every_dtype_is_documented():
    assert sorted(ORDER) == sorted(DTYPES) == sorted(FILE_DTYPES_BY_NAME)
    for name, size, _, _, _, in_file in tables()[0][1:]:
        assert ITEMSIZE[name] == int(size)
        assert FILE_DTYPES_BY_NAME[name] == in_file


def test_documented_promotion():
    header, *rows = tables()[1]
    written = {(row[0], b): c for row in rows for b, c in zip(header[1:], row[1:], strict=True)}
    assert written == {(a, b): result_type(a, b) for a, b in PAIRS}


def test_documented_scalars():
    header, *rows = tables()[2]
    assert header[1:] == [repr(scalar) for scalar in SCALARS]
    assert rows == [[a, *(scalar_dtype(a, scalar) for scalar in SCALARS)] for a in ORDER]


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_arrays_promote_as_documented(a, b, device):
    x, y = nd.ones((2,), a, device=device), nd.ones((2,), b, device=device)
    expected = result_type(a, b)
    assert (x * y).dtype == expected
    assert nd.where(nd.ones((2,), "bool", device=device), x, y).dtype == expected
    assert (x[None] @ y[:, None]).dtype == expected
    tensors = [ndl.Tensor(v, requires_grad=False) for v in (x, y)]
    assert (tensors[0] * tensors[1]).dtype == expected
    assert ndl.ops.stack([tensors[0], tensors[1]]).dtype == expected


@pytest.mark.parametrize("dtype", ORDER)
@pytest.mark.parametrize("scalar", SCALARS)
def test_scalars_are_weak(dtype, scalar, device):
    x = nd.ones((2,), dtype, device=device)
    expected = scalar_dtype(dtype, scalar)
    assert (x * scalar).dtype == (scalar * x).dtype == expected
    assert (ndl.Tensor(x, requires_grad=False) * scalar).dtype == expected
    if dtype != "bfloat16":
        assert np.result_type(np.ones(2, dtype), scalar).name == expected


def test_numpy_promotes_alike():
    for a, b in PAIRS:
        if "bfloat16" not in (a, b):
            assert result_type(a, b) == np.result_type(a, b).name, (a, b)
    # bfloat16 behaves like float16, except where the two meet.
    alike = {"bfloat16": "float16"}
    for a in ORDER:
        if a not in ("float16", "bfloat16"):
            promoted = result_type(a, "bfloat16")
            assert alike.get(promoted, promoted) == result_type(a, "float16")


# https://data-apis.org/array-api/latest/API_specification/type_promotion.html, the rows for
# needle's dtypes. The standard leaves mixed kinds to the library.
ARRAY_API = {
    ("bool", "bool"): "bool",
    ("int8", "int8"): "int8",
    ("int8", "uint8"): "int16",
    ("int8", "uint16"): "int32",
    ("uint8", "int16"): "int16",
    ("int16", "uint16"): "int32",
    ("uint8", "uint16"): "uint16",
    ("uint16", "int32"): "int32",
    ("int32", "int32"): "int32",
    ("int32", "int64"): "int64",
    ("int64", "int64"): "int64",
    ("float32", "float32"): "float32",
    ("float32", "float64"): "float64",
    ("float64", "float64"): "float64",
}


def test_array_api():
    for (a, b), expected in ARRAY_API.items():
        assert result_type(a, b) == result_type(b, a) == expected


def test_array_api_strict():
    strict = pytest.importorskip("array_api_strict")
    defined = 0
    for a, b in PAIRS:
        if {a, b} & {"float16", "bfloat16"}:
            continue
        try:
            expected = strict.result_type(getattr(strict, a), getattr(strict, b))
        except TypeError:  # mixed kinds
            continue
        assert expected == getattr(strict, result_type(a, b))
        defined += 1
    assert defined == 1 + 6 * 6 + 2 * 2


def test_promotion_is_symmetric_and_never_loses_a_float():
    for a, b in PAIRS:
        assert result_type(a, b) == result_type(b, a)
        if a in FLOATING:
            assert ITEMSIZE[result_type(a, b)] >= ITEMSIZE[a]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32"])
def test_comparisons_take_integers_that_the_dtype_does_not_hold(dtype):
    x = ndl.Tensor(np.array([0, 100], dtype), requires_grad=False)
    for scalar in (-(2**40), 2**40):
        assert (x < scalar).numpy().tolist() == [scalar > 0] * 2
        assert (x != scalar).numpy().all() and not (x == scalar).numpy().any()


def test_arrays_keep_their_small_integers():
    for dtype in ("int8", "uint8", "int16", "uint16"):
        assert ndl.Tensor(np.ones(2, dtype)).dtype == dtype


@pytest.mark.parametrize(
    ("scalar", "dtype"), [(True, "bool"), (2**53 - 1, "int64"), (0.5, "float32")]
)
def test_python_numbers_have_the_dtype_of_their_kind(scalar, dtype, device):
    for values in (scalar, [scalar]):
        for made in (nd.array(values, device=device), ndl.Tensor(values, device=device)):
            assert made.dtype == dtype
            assert made.numpy().tolist() == values
