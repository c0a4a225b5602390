"""Matrices and grids built from sizes, and triangles and diagonals of matrices."""

from __future__ import annotations

from operator import index as as_int
from typing import Any

import numpy as np

from ..autograd.tensor import Tensor, make_const
from ..backend_ndarray import DeviceLike, array, full
from ..backend_ndarray.arguments import finite
from ..common.state import state
from ..errors import ShapeError
from ..sizes.extents import as_extent, is_symbolic
from ._arguments import check_tensors
from .arange import arange
from .arithmetic import compare, maximum, where
from .elementwise import cast
from .reorder import diagonal
from .shape import broadcast_to, reshape
from .slicing import unslice


def _rows_against_columns(
    kind: str, rows: Any, columns: Any, k: int, device: DeviceLike | None
) -> Tensor:
    """Return the bool matrix of compare(kind, column, row + k)."""
    rows, columns, k = as_extent(rows), as_extent(columns), as_int(k)
    if state.trace is None:
        counted = np.arange(k, k + rows)[:, None]
        mask = getattr(np, kind)(np.arange(columns), counted)
        return make_const(array(mask, device=device))
    row = reshape(arange(k, k + rows, device=device), (rows, 1))
    return compare(kind, arange(columns, device=device), row)


def eye(
    n: int,
    m: int | None = None,
    k: int = 0,
    dtype: str = "float32",
    device: DeviceLike | None = None,
) -> Tensor:
    """Return zeros of shape (n, m), or (n, n) without `m`, with ones on the diagonal `k` (0: the
    main diagonal; positive: above it)."""
    return cast(_rows_against_columns("equal", n, n if m is None else m, k, device), dtype)


def tri(
    n: int,
    m: int | None = None,
    k: int = 0,
    dtype: str = "float32",
    device: DeviceLike | None = None,
) -> Tensor:
    """Return zeros (n, m), or (n, n) without `m`, with ones at and below the diagonal `k`."""
    return cast(_rows_against_columns("less_equal", n, n if m is None else m, k, device), dtype)


def tril(a: Tensor, k: int = 0) -> Tensor:
    """Return `a` with zeros above the diagonal `k` of its last two axes.

    >>> ndl.tril(ndl.ones(2, 3)).numpy().tolist()
    [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]]
    """
    check_tensors("tril", a=a)
    return _triangle("tril", "less_equal", a, k)


def triu(a: Tensor, k: int = 0) -> Tensor:
    """Return `a` with zeros below the diagonal `k` of its last two axes."""
    check_tensors("triu", a=a)
    return _triangle("triu", "greater_equal", a, k)


def _triangle(name: str, kind: str, a: Tensor, k: int) -> Tensor:
    if a.ndim < 2:
        raise ShapeError(f"{name}: shape {a.shape} has fewer than two axes")
    inside = _rows_against_columns(kind, a.shape[-2], a.shape[-1], k, a.device)
    return where(inside, a, make_const(full((), 0, a.dtype, a.device)))


def tril_indices(row: int, col: int, offset: int = 0) -> Tensor:
    """Return the int64 positions (2, n) of the elements on and below the diagonal `offset` of a
    matrix with `row` rows and `col` columns, row by row."""
    return make_const(np.stack(np.tril_indices(as_int(row), as_int(offset), as_int(col))))


def triu_indices(row: int, col: int, offset: int = 0) -> Tensor:
    """Return the int64 positions (2, n) of the elements on and above the diagonal `offset` of a
    matrix with `row` rows and `col` columns, row by row."""
    return make_const(np.stack(np.triu_indices(as_int(row), as_int(offset), as_int(col))))


def diag(a: Tensor, k: int = 0) -> Tensor:
    """Return the diagonal `k` of a matrix `a`, or for a vector `a` the matrix of zeros with the
    vector on its diagonal `k`."""
    check_tensors("diag", a=a)
    if a.ndim == 2:
        return diagonal(a, k)
    if a.ndim != 1:
        raise ShapeError(f"diag: shape {a.shape} is neither a vector nor a matrix")
    n = a.shape[0]
    size = n + abs(k)
    if is_symbolic((n,)):
        column = reshape(a, (n, 1)) if k == 0 else None
        if column is None:
            raise ShapeError(f"diag: k is {k}, but must be 0 for a vector of open size {n}")
        inside = _rows_against_columns("equal", n, n, 0, a.device)
        return where(inside, column, make_const(full((), 0, a.dtype, a.device)))
    start = k if k > 0 else -k * size
    stop = start + (n - 1) * (size + 1) + 1 if n else start
    return reshape(unslice(a, slice(start, stop, size + 1), (size * size,)), (size, size))


def meshgrid(*axes: Tensor, indexing: str = "ij") -> tuple[Tensor, ...]:
    """Return the coordinates of the grid of the vectors `axes`: for each vector a Tensor of shape
    (n1, n2, ...) that varies along the vector's own axis. With `indexing` "xy" the first two axes
    are exchanged (NumPy's default; PyTorch's is "ij")."""
    check_tensors("meshgrid", **{f"input {i}": x for i, x in enumerate(axes)})
    if indexing not in ("ij", "xy"):
        raise ValueError(f"meshgrid: indexing {indexing!r} is not 'ij' or 'xy'")
    for number, x in enumerate(axes):
        if x.ndim > 1:
            raise ShapeError(f"meshgrid: input {number} of shape {x.shape} is not a vector")
    order = list(range(len(axes)))
    if indexing == "xy" and len(axes) > 1:
        order[:2] = [1, 0]
    vectors = [reshape(x, (1,)) if x.ndim == 0 else x for x in axes]
    shape = tuple(vectors[i].shape[0] for i in order)
    lines = [[x.shape[0] if order[place] == i else 1 for place in range(len(axes))]
             for i, x in enumerate(vectors)]  # fmt: skip
    return tuple(
        broadcast_to(reshape(x, line), shape) for x, line in zip(vectors, lines, strict=True)
    )


def linspace(
    start: float, stop: float, count: int, dtype: str = "float32", device: DeviceLike | None = None
) -> Tensor:
    """Return `count` equally spaced numbers from `start` to `stop`, both included.

    >>> ndl.linspace(0.0, 1.0, 5).numpy().tolist()
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    start, stop = finite("linspace", "start", start), finite("linspace", "stop", stop)
    if is_symbolic((count,)):
        places = arange(count, dtype="float64", device=device)
        last = arange(count - 1, count, dtype="float64", device=device)
        last = maximum(last, make_const(full((), 1, "float64", device)))
        return cast(places * (float(stop) - start) / last + float(start), dtype)
    with np.errstate(all="ignore"):
        values = np.linspace(start, stop, as_extent(count))
        return make_const(array(values, dtype, device))
