"""Products of vectors and matrices with NumPy's and PyTorch's names, composed of other ops."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index as as_int
from typing import Any

import numpy as np

from ..autograd.dispatch import of_value, unrecorded
from ..autograd.shapes import broadcast_shapes, normalize_axes, normalize_axis
from ..autograd.tensor import Tensor, make_const
from ..common.state import state
from ..errors import ShapeError
from ..sizes.extents import same
from ._arguments import check_tensors
from .einsum import _contract
from .index import take
from .matmul import matmul
from .reduce import summation
from .reorder import diagonal, roll
from .shape import broadcast_to, reshape


def bmm(a: Tensor, b: Tensor) -> Tensor:
    """Return the batched product y[i] = a[i] @ b[i] of `a` (batch, n, m) and `b` (batch, m, p),
    like PyTorch's bmm; `matmul` also broadcasts. The result has the common dtype. Raises ShapeError
    for other shapes.

    >>> ndl.bmm(ndl.ones(2, 3, 4), ndl.ones(2, 4, 5)).shape
    (2, 3, 5)
    """
    check_tensors("bmm", a=a, b=b)
    if a.ndim != 3 or b.ndim != 3:
        raise ShapeError(f"bmm: shapes {a.shape} and {b.shape} do not both have 3 axes")
    if a.shape[0] != b.shape[0] or a.shape[2] != b.shape[1]:
        raise ShapeError(
            f"bmm: shapes {a.shape} and {b.shape} are not (batch, n, m) and (batch, m, p)"
        )
    return matmul(a, b)


def addmm(a: Tensor, b: Tensor, c: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """Return beta * a + alpha * (b @ c) for matrices `b` and `c` and an `a` that broadcasts to
    their product. If `beta` is 0, the values of `a` are ignored, even NaN."""
    check_tensors("addmm", a=a, b=b, c=c)
    product = matmul(b, c)
    product = product if alpha == 1 else product * alpha
    if beta == 0:
        return product
    return (a if beta == 1 else a * beta) + product


def tensordot(
    a: Tensor, b: Tensor, axes: int | Sequence[int] | Sequence[Sequence[int]] = 2
) -> Tensor:
    """Return the sum of products over pairs of axes, like NumPy's and PyTorch's tensordot. A number
    n as `axes` pairs the last n axes of `a` with the first n axes of `b`; two lists name the axes
    of `a` and of `b`. The result has the other axes of `a`, then the other axes of `b`, and the
    common dtype. Raises ShapeError for axes that are out of range or repeated, or whose extents
    differ.

    >>> ndl.tensordot(ndl.ones(2, 3, 4), ndl.ones(4, 3, 5), ([1, 2], [1, 0])).shape
    (2, 5)
    """
    check_tensors("tensordot", a=a, b=b)
    pairs: Any = axes
    if isinstance(pairs, (tuple, list)):
        if len(pairs) != 2:
            raise ShapeError(f"tensordot: axes {pairs} must be a number or two lists of axes")
    else:
        count = as_int(pairs)
        if not 0 <= count <= min(a.ndim, b.ndim):
            raise ShapeError(f"tensordot: {a.shape} and {b.shape} do not both have {count} axes")
        pairs = tuple(range(a.ndim - count, a.ndim)), tuple(range(count))
    left = normalize_axes("tensordot", pairs[0], a.ndim)
    right = normalize_axes("tensordot", pairs[1], b.ndim)
    if len(left) != len(right):
        raise ShapeError(
            f"tensordot: {len(left)} axes of a do not pair with {len(right)} axes of b"
        )
    for i, j in zip(left, right, strict=True):
        if not same(a.shape[i], b.shape[j]):
            raise ShapeError(
                f"tensordot: axis {i} of {a.shape} and axis {j} of {b.shape} have extents "
                f"{a.shape[i]} and {b.shape[j]}; they must be equal"
            )
    first = list(range(a.ndim))
    second = [left[right.index(i)] if i in right else a.ndim + i for i in range(b.ndim)]
    kept = [x for x in first if x not in left] + [x for x in second if x >= a.ndim]
    return _contract("tensordot", (tuple(first), tuple(second)), tuple(kept), (a, b))


def outer(a: Tensor, b: Tensor) -> Tensor:
    """Return y[i, j] = a[i] * b[j] in the common dtype. Operands of several axes are flattened, as
    in NumPy. Raises TypeError for anything but Tensors.

    >>> ndl.outer(ndl.ones(3), ndl.ones(4)).shape
    (3, 4)
    """
    values = unrecorded(a, b)
    if values is not None:
        left, right = values
        return of_value(left.reshape(-1, 1) * right.reshape(-1))
    check_tensors("outer", a=a, b=b)
    return reshape(a, (a.size, 1)) * reshape(b, (b.size,))


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Return the dot product of vectors, or a @ b for matrices, in the common dtype. As in NumPy, a
    0-d operand scales the other. With more axes, the sum is over the last axis of `a` and the
    second to last of `b`, and the result has the other axes of `a`, then the other axes of `b`.
    (PyTorch's dot takes only vectors.) Raises ShapeError if the extents differ.

    >>> ndl.dot(ndl.ones(3), ndl.ones(3)).item()
    3.0
    """
    values = unrecorded(a, b)
    if values is not None:
        left, right = values[0].view, values[1].view
        if left.ndim == right.ndim == 1 and left.dtype == right.dtype and left.size == right.size:
            return of_value(values[0] @ values[1])
    check_tensors("dot", a=a, b=b)
    if not a.ndim or not b.ndim:
        return a * b
    if a.ndim == 1 and b.ndim == 1:
        if not same(a.shape, b.shape):
            raise ShapeError(f"dot: vectors of shapes {a.shape} and {b.shape} differ in extent")
        return _contract("dot", ((0,), (0,)), (), (a, b))
    if a.ndim <= 2 and b.ndim <= 2:
        return matmul(a, b)
    return tensordot(a, b, ([-1], [-2 if b.ndim > 1 else -1]))


def kron(a: Tensor, b: Tensor) -> Tensor:
    """Return the Kronecker product: blocks of `b`, each multiplied by one element of `a`. Shapes
    (n, m) and (p, q) give (n * p, m * q), in the common dtype. The operand with fewer axes gets
    leading axes of extent 1.

    >>> ndl.kron(ndl.eye(2), ndl.ones(1, 2)).numpy().tolist()
    [[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]]
    """
    values = unrecorded(a, b)
    if values is not None and values[0].ndim <= 8 and values[1].ndim <= 8:
        return of_value(values[0].kron(values[1]))
    check_tensors("kron", a=a, b=b)
    ndim = max(a.ndim, b.ndim)
    left, right = ((1,) * (ndim - x.ndim) + tuple(x.shape) for x in (a, b))
    product = reshape(a, _interleaved(left, 1, 0)) * reshape(b, _interleaved(right, 1, 1))
    return reshape(product, tuple(n * m for n, m in zip(left, right, strict=True)))


def _interleaved(shape: Sequence[int], fill: int, side: int) -> tuple[int, ...]:
    """Return the extents with `fill` after (side 0) or before (side 1) each of them."""
    return tuple(x for n in shape for x in ((fill, n) if side else (n, fill)))


def trace(a: Tensor, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """Return the sum of the elements at (i, i + offset) of the axes `axis1` and `axis2`; the result
    lacks these axes. (PyTorch's trace takes only matrices.) Bools and int32 are summed in int64, as
    in `sum`. Raises ShapeError for fewer than two axes.

    >>> ndl.trace(ndl.eye(3)).item()
    3.0
    """
    values = unrecorded(a)
    if values is not None:
        line = values[0].diagonal(offset, axis1, axis2)
        if line is not None:
            return of_value(line.sum(-1))
    return summation(diagonal(a, offset, axis1, axis2), -1)


def cross(a: Tensor, b: Tensor, axis: int = -1) -> Tensor:
    """Return the cross product of vectors of 3 elements along `axis`, in the common dtype:
    y[i] = a[i + 1] * b[i + 2] - a[i + 2] * b[i + 1], with indices modulo 3. Other axes broadcast,
    and `axis` refers to the axes of the result. Raises ShapeError for an extent other than 3.

    >>> x, y = ndl.Tensor([1.0, 0.0, 0.0]), ndl.Tensor([0.0, 1.0, 0.0])
    >>> ndl.cross(x, y).numpy().tolist()
    [0.0, 0.0, 1.0]
    """
    check_tensors("cross", a=a, b=b)
    shape = broadcast_shapes("cross", a.shape, b.shape)
    axis = normalize_axis("cross", axis, len(shape))
    a, b = broadcast_to(a, shape), broadcast_to(b, shape)
    if not same(shape[axis], 3):
        raise ShapeError(f"cross: axis {axis} of shape {shape} has extent {shape[axis]}, not 3")
    return _next(a * _next(b, axis) - _next(a, axis) * b, axis)


def _next(a: Tensor, axis: int) -> Tensor:
    """Return y[i] = a[i + 1] along an axis of 3 elements, modulo 3. Compiled code fuses slices;
    eagerly, one take is faster than slices and a concatenation."""
    if state.trace is not None:
        return roll(a, -1, axis)
    return take(a, make_const(np.array([1, 2, 0]), a.device), axis)
