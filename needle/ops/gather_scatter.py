"""PyTorch's gather, scatter and masks, and functions whose results have shapes that depend on
values. All are composed of other ops."""

from __future__ import annotations

from operator import index as as_int
from typing import Any

import numpy as np

from ..autograd.dispatch import apply
from ..autograd.shapes import Shape, broadcast_shapes, normalize_axis
from ..autograd.tensor import Tensor, make_const
from ..common.state import state
from ..errors import ShapeError, TraceError
from ..sizes.extents import same
from ._arguments import as_source, check_tensors
from .along_axis import PutAlongAxis, TakeAlongAxis
from .arithmetic import where
from .assign import add_at, set_at
from .getitem import getitem
from .shape import broadcast_to
from .slicing import set_slice
from .slicing import slice as get_slice


def gather(a: Tensor, axis: int, index: Tensor) -> Tensor:
    """Return y[..., j, ...] = a[..., index[..., j, ...], ...] along `axis`, in index's shape, like
    PyTorch's gather (`take` picks whole slices). Along the other axes, `index` may be shorter than
    `a`.

    Negative positions count from the end. Raises IndexError for a position out of range. A compiled
    function checks the indices it is called with, and clamps those that it computes itself.

    >>> a = ndl.Tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> ndl.gather(a, 1, ndl.Tensor([[1], [0]])).numpy().tolist()
    [[2.0], [3.0]]
    """
    key, axis = _corner("gather", a, axis, index)
    return apply(TakeAlongAxis(axis), (get_slice(a, key) if key else a, index))


def scatter(a: Tensor, axis: int, index: Tensor, source: Tensor | float) -> Tensor:
    """Return a copy y of `a` with y[..., index[..., j, ...], ...] = source[..., j, ...] along
    `axis`, as in PyTorch. `index` may be shorter than `a` along the other axes, and shorter
    than `source` along all axes. If positions repeat, the last element of `source` wins, and only
    it receives a gradient.

    Raises IndexError for a position out of range. A compiled function checks the indices it is
    called with, and skips invalid ones that it computes itself.

    >>> ndl.scatter(ndl.zeros(3), 0, ndl.Tensor([2, 0]), ndl.Tensor([5.0, 6.0])).numpy().tolist()
    [6.0, 0.0, 5.0]
    """
    return _scatter("scatter", "set", a, axis, index, source)


def index_add(a: Tensor, axis: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    """Return a copy y of `a` with alpha * source[..., i, ...] added to y[..., index[i], ...] along
    `axis`; `index` is a vector and may repeat positions. Raises IndexError for a position out of
    range."""
    check_tensors("index_add", a=a, index=index, source=source)
    return add_at(a, _along("index_add", a, axis, index), source if alpha == 1 else source * alpha)


def index_fill(a: Tensor, axis: int, index: Tensor, value: Tensor | float) -> Tensor:
    """Return a copy of `a` with `value`, a number, at the positions of the vector `index` along
    `axis`. Raises IndexError for a position out of range."""
    check_tensors("index_fill", a=a, index=index)
    return set_at(a, _along("index_fill", a, axis, index), value)


def _along(name: str, a: Tensor, axis: int, index: Tensor) -> tuple[Any, ...]:
    if index.ndim > 1:
        raise ShapeError(f"{name}: index has shape {index.shape}; it must be a vector")
    return (*[slice(None)] * normalize_axis(name, axis, a.ndim), index)


def scatter_add(a: Tensor, axis: int, index: Tensor, source: Tensor | float) -> Tensor:
    """Return a copy of `a` with the elements of `source` added at the positions that `scatter`
    would write for the same `axis` and `index`. If positions repeat, all their elements are added.

    >>> ndl.scatter_add(ndl.zeros(3), 0, ndl.Tensor([1, 1]), ndl.ones(2)).numpy().tolist()
    [0.0, 2.0, 0.0]
    """
    return _scatter("scatter_add", "add", a, axis, index, source)


def scatter_mul(a: Tensor, axis: int, index: Tensor, source: Tensor | float) -> Tensor:
    """Return a copy of `a` multiplied by the elements of `source` at the positions that `scatter`
    would write for the same `axis` and `index`. If positions repeat, all their elements are
    factors."""
    return _scatter("scatter_mul", "mul", a, axis, index, source)


def scatter_max(a: Tensor, axis: int, index: Tensor, source: Tensor | float) -> Tensor:
    """Return a copy of `a` with, at each position that `scatter` would write for the same `axis`
    and `index`, the largest of the old element and the elements of `source`. Equal elements share
    the gradient equally."""
    return _scatter("scatter_max", "max", a, axis, index, source)


def scatter_min(a: Tensor, axis: int, index: Tensor, source: Tensor | float) -> Tensor:
    """Return a copy of `a` with, at each position that `scatter` would write for the same `axis`
    and `index`, the smallest of the old element and the elements of `source`. Equal elements share
    the gradient equally."""
    return _scatter("scatter_min", "min", a, axis, index, source)


def _scatter(name: str, how: str, a: Tensor, axis: int, index: Tensor, source: Any) -> Tensor:
    key, axis = _corner(name, a, axis, index)
    part = get_slice(a, key) if key else a
    if isinstance(source, Tensor) and source.ndim == index.ndim:
        longer = [m > n for m, n in zip(source.shape, index.shape, strict=True)]
        if any(longer):
            source = get_slice(source, tuple(slice(0, n) for n in index.shape))
    out = apply(PutAlongAxis(how, axis), (part, index, as_source(name, a, source, index.shape)))
    return set_slice(a, out, key) if key else out


def _corner(name: str, a: Any, axis: Any, index: Any) -> tuple[tuple[slice, ...], int]:
    """Return the key of the part of `a` that the index covers (empty for all of it), and the axis
    counted from the front."""
    for what, x in (("a", a), ("index", index)):
        if not isinstance(x, Tensor):
            order = f"; its arguments are {name}(a, axis, index, ...)"
            raise TypeError(f"{name}: {what} is a {type(x).__name__}, not a Tensor{order}")
    axis = normalize_axis(name, as_int(axis), a.ndim)
    if a.ndim != index.ndim:
        raise ShapeError(f"{name}: the index has {index.ndim} axes, {a.shape} has {a.ndim}")
    rest = [i for i in range(a.ndim) if i != axis]
    if all(same(index.shape[i], a.shape[i]) for i in rest):
        return (), axis
    if any(index.shape[i] > a.shape[i] for i in rest):
        raise ShapeError(
            f"{name}: the index {index.shape} is longer than {a.shape} along an axis other than "
            f"{axis}"
        )
    key = tuple(slice(None) if i == axis else slice(0, n) for i, n in enumerate(index.shape))
    return key, axis


def masked_fill(a: Tensor, mask: Tensor, value: Tensor | float) -> Tensor:
    """Return `a` with `value`, a number or a 0-d Tensor, where the bool `mask` is true. `value` is
    converted to a's dtype; `a` and `mask` broadcast.

    >>> x = ndl.Tensor([1.0, -1.0])
    >>> ndl.masked_fill(x, x < 0, 0.0).numpy().tolist()
    [1.0, 0.0]
    """
    check_tensors("masked_fill", a=a, mask=mask)
    _check_mask("masked_fill", mask)
    return where(mask, as_source("masked_fill", a, value, ()), a)


def masked_select(a: Tensor, mask: Tensor) -> Tensor:
    """Return, as a vector, the elements of `a` at which the bool `mask` is true; the two broadcast.
    Raises TraceError while tracing, because the mask decides the shape.

    >>> x = ndl.Tensor([1.0, -1.0, 2.0])
    >>> ndl.masked_select(x, x > 0).numpy().tolist()
    [1.0, 2.0]
    """
    check_tensors("masked_select", a=a)
    _check_mask("masked_select", mask)
    shape = broadcast_shapes("masked_select", a.shape, mask.shape)
    chosen = make_const(_values("masked_select", mask, "use where"), a.device)
    return getitem(broadcast_to(a, shape), broadcast_to(chosen, shape))


def nonzero(a: Tensor, as_tuple: bool = False) -> Tensor | tuple[Tensor, ...]:
    """Return the positions of the nonzero elements: int64 of shape (count, a.ndim), or one Tensor
    for each axis if `as_tuple`. Raises TraceError while tracing, because values decide the shape.

    >>> ndl.nonzero(ndl.Tensor([0, 5, 7])).numpy().tolist()
    [[1], [2]]
    """
    values = _values("nonzero", a, "use where")
    found = np.argwhere(values) if values.ndim else np.zeros((int(bool(values)), 0))
    positions = found.astype(np.int64)
    if not as_tuple:
        return make_const(positions, a.device)
    return tuple(make_const(positions[:, i].copy(), a.device) for i in range(a.ndim))


def unique(
    a: Tensor,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """Return the distinct elements of `a` in ascending order, or the distinct slices along `axis`.
    With `return_inverse`, also return the index of each element of `a` among them, and with
    `return_counts` the number of times that each occurs (int64). No gradient flows back. Raises
    TraceError while tracing, because values decide the shape.

    >>> values, counts = ndl.unique(ndl.Tensor([3, 1, 3]), return_counts=True)
    >>> values.numpy().tolist(), counts.numpy().tolist()
    ([1, 3], [1, 2])
    """
    values = _values("unique", a, "sort them, or use one_hot for class numbers")
    if axis is not None:
        axis = normalize_axis("unique", axis, values.ndim)
    wide = values.astype(np.float32) if values.dtype.itemsize == 2 else values
    found, inverse, counts = np.unique(wide, return_inverse=True, return_counts=True, axis=axis)
    shape: Shape = values.shape if axis is None else (values.shape[axis],)
    out = [make_const(found.astype(values.dtype), a.device)]
    if return_inverse:
        out.append(make_const(inverse.reshape(shape).astype(np.int64), a.device))
    if return_counts:
        out.append(make_const(counts.astype(np.int64), a.device))
    return out[0] if len(out) == 1 else tuple(out)


def _check_mask(name: str, mask: Any) -> None:
    if not isinstance(mask, Tensor) or mask.dtype != "bool":
        kind = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"{name}: the mask is a {kind}, not a bool Tensor")


def _values(name: str, a: Tensor, instead: str) -> np.ndarray[Any, Any]:
    """Return the values of `a`, which decide a shape. Raises TraceError if they are not known."""
    if not isinstance(a, Tensor):
        raise TypeError(f"{name}: input 0 is a {type(a).__name__}, not a Tensor")
    if state.trace is None:
        return a.numpy()
    try:
        return a.numpy()
    except TraceError as error:
        raise TraceError(
            f"{name}: {error} ({name} is for eager code: values decide the shape of its result; "
            f"{instead})"
        ) from None
