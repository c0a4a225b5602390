"""Basic indexing: ints, slices with any step, Ellipsis and None."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import numpy as np

from ..autograd.dispatch import apply
from ..autograd.shapes import Shape, Spec, as_shape, common_device
from ..autograd.tensor import Tensor, make_const
from ..backend_ndarray import NDArray, full, zeros
from ..errors import ShapeError
from ..op import Movement, Op, register
from ..op.samples import Arg, error, sample
from ..op.signatures import Expr, Extent, Gradients, TeNamespace, TeTensor
from . import _te
from ._keys import BasicKey, Key, Range, Span, as_key, expand, native, resolved, sliced_shape, span
from .shape import broadcast_to

_CASES: tuple[tuple[Shape, BasicKey], ...] = (
    ((5,), 2),
    ((5,), (-1, None)),
    ((5,), Range(1, 4)),
    ((5,), Range(None, None, -2)),
    ((3, 4), (Range(), 1)),
    ((3, 4), (Ellipsis, Range(3, 0, -1))),
    ((2, 3, 4), (0, Ellipsis, Range(None, None, 3))),
    ((2, 3, 4), (Range(1, 9), None, 2)),
    ((3, 4), (Range(2, 2),)),
    ((0, 3), (Range(), 1)),
    ((), ()),
)


@register
class Slice(Movement):
    """y = x[key], where `key` holds ints, Ranges, None and Ellipsis."""

    may_share = True

    key: Key

    infer_first = True
    samples = tuple(sample(shape, key=as_key(key)) for shape, key in _CASES)
    error_samples = (
        error(IndexError, "index 3 .* axis 0 of extent 3", (3, 4), key=(3,)),
        error(ShapeError, "3 indices", (3, 4), key=(0, 0, 0)),
        error(ShapeError, "indices", (3, 4), key=(Ellipsis, Ellipsis)),
        error(ShapeError, "step", (3,), key=(Range(None, None, 0),)),
    )

    def shape_of(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return sliced_shape(self.name, self.key, shape)

    def decided(self, x: Spec) -> Slice:
        return Slice(resolved(self.name, self.key, x.shape))

    def reference(self, x: np.ndarray) -> np.ndarray:
        return x[native(self.key)]

    def compute(self, x: NDArray) -> NDArray:
        return x[native(self.key)]

    def gradient(self, out_grad: Tensor, node: Tensor) -> Tensor:
        return apply(Unslice(self.key, node.inputs[0].shape), (out_grad,))

    def emit_te(self, k: TeNamespace, x: TeTensor) -> TeTensor:
        shape: list[Extent] = []
        # For each axis of x: the output axis (None if there is none), and the start and step of its
        # index.
        makers: list[tuple[int | None, Extent, int]] = []
        axis = 0
        for entry in expand(self.name, self.key, len(x.shape)):
            if entry is None:
                shape.append(1)
                continue
            n = x.shape[axis]
            axis += 1
            if entry == Range():
                makers.append((len(shape), 0, 1))
                shape.append(n)
            elif isinstance(entry, (Range, Span)):
                start, step, count = span(
                    self.name, entry, n if isinstance(entry, Span) else int(n)
                )
                makers.append((len(shape), start, step))
                shape.append(count)
            else:
                back = isinstance(entry, int) and entry < 0
                makers.append((None, n + entry if back else entry, 0))

        def body(*out: Expr) -> Expr:
            return x(*(start if o is None else start + out[o] * step for o, start, step in makers))

        return k.te.compute(shape, body)

    def emit(self, r: ModuleType, x: Expr) -> Expr | None:
        """Return an expression that compiler passes turn into direct reads of x. Return None unless
        all steps are 1 and the extents of the sliced axes are known."""
        extents, shape, axes = list(x.ty.shape.values), [], []
        begins, ends, axis, renumbered = [], [], 0, False
        for entry in expand(self.name, self.key, len(extents)):
            renumbered |= entry is None or isinstance(entry, int)
            if entry is None:
                shape.append(1)
                continue
            n, axis = extents[axis], axis + 1
            if entry == Range():
                shape.append(n)
                continue
            if isinstance(entry, Span) or not hasattr(n, "value"):
                return None
            if isinstance(entry, Range):
                start, step, count = span(self.name, entry, int(n))
                if step != 1:
                    return None
                shape.append(count)
            elif isinstance(entry, int):
                start, count = entry % int(n), 1
            else:
                return None
            axes.append(axis - 1)
            begins.append(start)
            ends.append(start + count)
        if any(map(_te.is_zero, (*extents, *shape))):
            return None
        if axes:
            x = r.op.strided_slice(x, axes, begins, ends, assume_inbound=True)
        return r.op.reshape(x, shape) if renumbered or not axes else x


@register
class Unslice(Op):
    """y = zeros of `shape`, with x at [key]: the gradient of slicing."""

    key: Key
    shape: tuple[int, ...]

    infer_first = True
    moves = True
    samples = tuple(
        sample(sliced_shape("unslice", as_key(key), shape), key=as_key(key), shape=shape)
        for shape, key in _CASES
    )
    error_samples = (
        error(ShapeError, r"\(2,\) .* \(4,\)", (2,), key=(0,), shape=(3, 4)),
        error(IndexError, "index 3", (4,), key=(3,), shape=(3, 4)),
    )

    def infer(self, x: Spec) -> Spec:
        taken = sliced_shape(self.name, self.key, self.shape)
        if x.shape != taken:
            raise ShapeError(f"{self.name}: shape {x.shape} does not fill a slice of shape {taken}")
        return Spec(self.shape, x.dtype, x.device)

    def decided(self, x: Spec) -> Unslice:
        return Unslice(resolved(self.name, self.key, self.shape), self.shape)

    def reference(self, x: np.ndarray) -> np.ndarray:
        out = np.zeros(self.shape, x.dtype)
        out[native(self.key)] = x
        return out

    def compute(self, x: NDArray) -> NDArray:
        out = zeros(self.shape, x.dtype, x.device)
        out[native(self.key)] = x
        return out

    def gradient(self, out_grad: Tensor, node: Tensor) -> Tensor:
        return apply(Slice(self.key), (out_grad,))

    def emit_te(self, k: TeNamespace, x: TeTensor) -> TeTensor:
        zero = _te.full_like(k, x, 0)
        return _put_te(k, self.name, self.key, self.shape, x, lambda *_: zero)


@register
class SetSlice(Op):
    """y = a copy of x with y[key] = value; value has the shape of x[key]."""

    key: Key

    infer_first = True
    moves = True
    samples = tuple(
        sample(shape, sliced_shape("set_slice", as_key(key), shape), key=as_key(key))
        for shape, key in _CASES
    )
    error_samples = (
        error(ShapeError, r"\(2,\) .* \(4,\)", (3, 4), (2,), key=(0,)),
        error(IndexError, "index 3", (3, 4), (4,), key=(3,)),
        error(TypeError, "float64", (3,), Arg((), dtype="float64"), key=(0,)),
    )

    def infer(self, x: Spec, value: Spec) -> Spec:
        taken = sliced_shape(self.name, self.key, x.shape)
        if value.shape != taken:
            raise ShapeError(
                f"{self.name}: shape {value.shape} does not fill a slice of shape {taken}"
            )
        if value.dtype != x.dtype:
            raise TypeError(
                f"{self.name}: elements of {value.dtype} cannot be put into {x.dtype}; cast them"
            )
        return Spec(x.shape, x.dtype, common_device(self.name, x, value))

    def decided(self, x: Spec, value: Spec) -> SetSlice:
        return SetSlice(resolved(self.name, self.key, x.shape))

    def reference(self, x: np.ndarray, value: np.ndarray) -> np.ndarray:
        out = np.array(x)  # makes an array even if x is a NumPy scalar instead of a 0-d array
        out[native(self.key)] = value
        return out

    def compute(self, x: NDArray, value: NDArray) -> NDArray:
        out = x.copy()
        out[native(self.key)] = value
        return out

    def gradient(self, out_grad: Tensor, node: Tensor) -> Gradients:
        x, value = node.inputs
        zero = make_const(full((), 0, out_grad.dtype, out_grad.device))
        return (
            apply(self, (out_grad, broadcast_to(zero, value.shape))) if x.requires_grad else None,
            apply(Slice(self.key), (out_grad,)) if value.requires_grad else None,
        )

    def emit_te(self, k: TeNamespace, x: TeTensor, value: TeTensor) -> TeTensor:
        return _put_te(k, self.name, self.key, tuple(x.shape), value, x)


def _put_te(
    k: TeNamespace,
    name: str,
    key: Key,
    shape: tuple[int, ...],
    value: TeTensor,
    around: Callable[..., Expr],
) -> TeTensor:
    """Return an array of `shape` with the elements of `value` at [key], and around(*index) at all
    other positions."""
    entries = expand(name, key, len(shape))

    def body(*i: Expr) -> Expr:
        hits, source, axis = [], [], 0
        for entry in entries:
            if entry is None:
                source.append(0)
                continue
            at, n = i[axis], getattr(shape[axis], "value", shape[axis])  # n is an int if known
            axis += 1
            if not isinstance(entry, (Range, Span)):
                back = isinstance(entry, int) and entry < 0
                hits.append(at == (n + entry if back else entry))
                continue
            taken = span(name, entry, n) if entry != Range() else None
            if taken is None or (type(n) is type(taken.length) is int and taken == (0, 1, n)):
                source.append(at)
                continue
            # The distance from the start in the direction of the step.
            ahead = at - taken.start if taken.step > 0 else taken.start - at
            step = abs(taken.step)
            place = k.tirx.floordiv(ahead, step)
            hits += [ahead >= 0, k.tirx.floormod(ahead, step) == 0, place < taken.length]
            source.append(place)
        if not hits:
            return value(*source)
        return k.tirx.if_then_else(k.tirx.all(*hits), value(*source), around(*i))

    return k.te.compute(shape, body)


def unslice(a: Tensor, key: BasicKey, shape: tuple[int, ...]) -> Tensor:
    """Return zeros of `shape` with `a` at `key`. Raises ShapeError if `a` does not fit."""
    return apply(Unslice(as_key(key), as_shape("unslice", shape)), (a,))


def set_slice(a: Tensor, value: Tensor, key: BasicKey) -> Tensor:
    """Return a copy of `a` whose slice at `key` (ints, slices, None and Ellipsis) is `value`,
    which has the dtype of `a` and the shape of a[key]. Raises ShapeError, IndexError or TypeError
    if it does not fit."""
    return apply(SetSlice(as_key(key)), (a, value))


def slice(a: Tensor, key: BasicKey) -> Tensor:
    """Return a[key] for a `key` of ints, slices, None and Ellipsis. Raises IndexError or ShapeError
    if the key does not fit, TypeError for arrays."""
    return apply(Slice(as_key(key)), (a,))
