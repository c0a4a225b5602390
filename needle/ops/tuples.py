"""Ops that join or split tensors, or return several tensors."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index as as_int
from types import ModuleType

import numpy as np

from ..autograd.dispatch import apply
from ..autograd.shapes import Shape, Spec, common_device, normalize_axis
from ..autograd.tensor import Tensor, TensorTuple
from ..backend_ndarray import NDArray
from ..backend_ndarray.dtypes import result_type
from ..backend_ndarray.ndarray import wrap
from ..common.state import state
from ..errors import ShapeError, TraceError
from ..op import Op, register
from ..op.samples import Arg, Sample, error, sample
from ..op.signatures import Expr, Gradients, TeNamespace, TeTensor
from ..sizes.dims import Expression
from . import _te
from .scalar import AddScalar
from .slicing import slice as get_slice

WIDEST = 64  # the most parts of a stack or concatenation that one kernel writes

_PARTS = [Arg((2, 3)), Arg((4,)), Arg(())]


@register
class MakeTuple(Op):
    """A TensorTuple with the inputs as its parts."""

    may_share = True

    structural = True
    samples = (sample((2, 3)), sample((2, 3), (4,), ()))
    error_samples = (error(TypeError, "not a Tensor", 1.5),)

    def infer(self, *parts: Spec) -> tuple[Spec, ...]:
        return parts

    def reference(self, *parts: np.ndarray) -> tuple[np.ndarray, ...]:
        return parts

    def compute(self, *parts: NDArray) -> tuple[NDArray, ...]:
        return parts

    def gradient(self, out_grad: TensorTuple, node: TensorTuple) -> Gradients:
        return tuple(out_grad)

    def emit_te(self, k: TeNamespace, *parts: TeTensor) -> tuple[TeTensor, ...]:
        return tuple(k.topi.identity(x) for x in parts)

    def emit(self, r: ModuleType, *parts: Expr) -> Expr | None:
        return r.Tuple(list(parts))


@register
class TupleGetItem(Op):
    """One part of a TensorTuple."""

    may_share = True

    index: int

    structural = True
    samples = tuple(Sample((_PARTS,), {"index": i}) for i in (0, 2, -1))
    error_samples = (
        error(IndexError, "index 3 .* 3 parts", _PARTS, index=3),
        error(TypeError, "not a TensorTuple", (2, 3), index=0),
    )

    def infer(self, parts: Spec | tuple[Spec, ...]) -> Spec:
        if isinstance(parts, Spec):
            raise TypeError(f"{self.name}: the input is a Tensor, not a TensorTuple")
        if not -len(parts) <= self.index < len(parts):
            raise IndexError(
                f"{self.name}: index {self.index} is out of range for {len(parts)} parts"
            )
        return parts[self.index]

    def reference(self, parts: tuple[np.ndarray, ...]) -> np.ndarray:
        return parts[self.index]

    def compute(self, parts: tuple[NDArray, ...]) -> NDArray:
        if type(parts) is not tuple:
            raise TypeError("not a tuple")
        return parts[self.index]

    def gradient(self, out_grad: Tensor, node: Tensor) -> Gradients:
        parts: list[Tensor | None] = [None] * len(node.inputs[0])  # None stands for zeros
        parts[self.index] = out_grad
        return (tuple(parts),)

    def emit_te(self, k: TeNamespace, parts: tuple[TeTensor, ...]) -> TeTensor:
        return k.topi.identity(parts[self.index])

    def emit(self, r: ModuleType, parts: Expr) -> Expr | None:
        count = len(parts.ty.fields)
        return r.TupleGetItem(parts, self.index % count)


def _joined(parts: tuple[NDArray, ...], axis: int, stacked: bool = False) -> NDArray:
    """Return the parts joined along an axis, or stacked along a new one. Raises ValueError or
    TypeError if they do not fit."""
    if not parts:
        raise ValueError("there are no parts")
    device = parts[0].device
    if any(part.device is not device for part in parts):
        raise ValueError("the parts are on different devices")
    views = tuple([part.view for part in parts])
    return wrap(device, device.kernels.concat(views, axis, stacked))


def _slice_at(axis: int, i: int) -> tuple[int | slice, ...]:
    """Return the key of slice `i` along `axis`."""
    return (*[slice(None)] * axis, i)


@register
class Stack(Op):
    """Tensors of the same shape, stacked along a new axis."""

    axis: int = 0

    moves = True
    samples = (
        sample((3, 4), (3, 4), axis=0),
        sample((3, 4), (3, 4), (3, 4), axis=1),
        sample((3, 4), axis=-1),
        sample((), (), axis=0),
        sample((0, 2), (0, 2), axis=1),
    )
    error_samples = (
        error(ShapeError, r"\(2, 3\) and \(3, 2\)", (2, 3), (3, 2)),
        error(ShapeError, "out of range", (2, 3), (2, 3), axis=3),
        error(ValueError, "at least one"),
    )

    def infer(self, *parts: Spec) -> Spec:
        if not parts:
            raise ValueError(f"{self.name}: needs at least one tensor")
        shape, dtype = parts[0].shape, parts[0].dtype
        axis = normalize_axis(self.name, self.axis, len(shape) + 1)
        for part in parts:
            if part.shape != shape:
                raise ShapeError(f"{self.name}: shapes {shape} and {part.shape} differ")
            dtype = result_type(dtype, part.dtype)
        new = (*shape[:axis], len(parts), *shape[axis:])
        return Spec(new, dtype, common_device(self.name, *parts))

    def reference(self, *parts: np.ndarray) -> np.ndarray:
        return np.stack(parts, self.axis)

    def compute(self, *parts: NDArray) -> NDArray:
        return _joined(parts, self.axis, stacked=True)

    def gradient(self, out_grad: Tensor, node: Tensor) -> Gradients:
        parts = split(out_grad, self.axis)
        return tuple(
            p if p.dtype == x.dtype else p.astype(x.dtype)
            for p, x in zip(parts, node.inputs, strict=True)
        )

    def emit(self, r: ModuleType, *parts: Expr) -> Expr | None:
        if len(parts) > 1:
            return None
        shape = list(parts[0].ty.shape.values)
        shape.insert(self.axis % (len(shape) + 1), 1)
        return r.op.reshape(parts[0], shape)

    def emit_te(self, k: TeNamespace, *parts: TeTensor) -> TeTensor:
        dtype = _te.dtype_of(parts[0])
        for part in parts:
            dtype = result_type(dtype, _te.dtype_of(part))
        axis = self.axis % (len(parts[0].shape) + 1)
        return k.topi.stack([_te.cast(k, part, dtype) for part in parts], axis)


@register
class Split(Op):
    """A TensorTuple of the slices of x along `axis`, without that axis."""

    may_share = True

    axis: int

    infer_first = True
    moves = True
    samples = (
        sample((3, 4), axis=0),
        sample((3, 4), axis=-1),
        sample((2, 3, 4), axis=1),
        sample((2,), axis=0),
        sample((2, 0), axis=0),
    )
    error_samples = (
        error(ShapeError, "out of range", (2, 3), axis=2),
        error(ShapeError, "out of range", (), axis=0),
    )

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        axis = normalize_axis(self.name, self.axis, x.ndim)
        if isinstance(x.shape[axis], Expression):
            raise TraceError(
                f"{self.name}: axis {axis} of {x} has as many parts as its size {x.shape[axis]}, "
                "which is not known while tracing; use operations on the whole axis"
            )
        part = Spec((*x.shape[:axis], *x.shape[axis + 1 :]), x.dtype, x.device)
        return (part,) * x.shape[axis]

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        return tuple(np.moveaxis(x, self.axis, 0))

    def compute(self, x: NDArray) -> tuple[NDArray, ...]:
        axis = self.axis % x.ndim
        return tuple(x[_slice_at(axis, i)] for i in range(x.shape[axis]))

    def gradient(self, out_grad: TensorTuple, node: TensorTuple) -> Tensor:
        return stack(out_grad, self.axis)

    def emit_te(self, k: TeNamespace, x: TeTensor) -> tuple[TeTensor, ...]:
        axis = self.axis % len(x.shape)
        shape = [*x.shape[:axis], *x.shape[axis + 1 :]]

        def part(i: int) -> TeTensor:
            return k.te.compute(shape, lambda *o: x(*o[:axis], i, *o[axis:]))

        return tuple(part(i) for i in range(int(x.shape[axis])))


@register
class Concat(Op):
    """Tensors concatenated along `axis`; their other extents must be equal."""

    axis: int = 0

    moves = True
    samples = (
        sample((2, 3), (4, 3)),
        sample((2, 3), (2, 1), (2, 2), axis=-1),
        sample((2, 3, 2), (2, 1, 2), axis=1),
        sample((3,)),
        sample((0, 2), (2, 2)),
        sample((2, 2), Arg((1, 2), dtype="float64")),
    )
    error_samples = (
        error(ShapeError, r"\(2, 3\) and \(2, 4\)", (2, 3), (2, 4)),
        error(ShapeError, r"\(2, 3\) and \(2,\)", (2, 3), (2,)),
        error(ShapeError, "out of range", (2, 3), (2, 3), axis=2),
        error(ShapeError, "out of range", ()),
        error(ValueError, "at least one"),
    )

    def infer(self, *parts: Spec) -> Spec:
        if not parts:
            raise ValueError(f"{self.name}: needs at least one tensor")
        shape, dtype = parts[0].shape, parts[0].dtype
        axis = normalize_axis(self.name, self.axis, len(shape))
        total = 0
        for part in parts:
            other = part.shape
            rest = (*other[:axis], *other[axis + 1 :])
            if len(other) != len(shape) or rest != (*shape[:axis], *shape[axis + 1 :]):
                raise ShapeError(
                    f"{self.name}: shapes {shape} and {other} differ beyond axis {self.axis}"
                )
            total += other[axis]
            dtype = result_type(dtype, part.dtype)
        new = (*shape[:axis], total, *shape[axis + 1 :])
        return Spec(new, dtype, common_device(self.name, *parts))

    def spans(self, shapes: Sequence[Shape]) -> list[tuple[slice, ...]]:
        """Return the key of each part within the result."""
        axis, start, out = self.axis % len(shapes[0]), 0, []
        for shape in shapes:
            out.append((*[slice(None)] * axis, slice(start, start + shape[axis])))
            start += shape[axis]
        return out

    def reference(self, *parts: np.ndarray) -> np.ndarray:
        return np.concatenate(parts, self.axis)

    def compute(self, *parts: NDArray) -> NDArray:
        return _joined(parts, self.axis)

    def gradient(self, out_grad: Tensor, node: Tensor) -> Gradients:
        inputs = node.inputs
        grads = []
        for key, x in zip(self.spans([x.shape for x in inputs]), inputs, strict=True):
            part = get_slice(out_grad, key)
            grads.append(part if part.dtype == x.dtype else part.astype(x.dtype))
        return tuple(grads)

    def emit_te(self, k: TeNamespace, *parts: TeTensor) -> TeTensor:
        dtype = _te.dtype_of(parts[0])
        for part in parts:
            dtype = result_type(dtype, _te.dtype_of(part))
        axis = self.axis % len(parts[0].shape)
        cast = [_te.cast(k, part, dtype) for part in parts]
        some = [part for part in cast if not _te.is_zero(part.shape[axis])]
        if len(some) < 2:
            return k.topi.identity(some[0] if some else cast[0])
        return k.topi.concatenate(some, axis)

    def emit(self, r: ModuleType, *parts: Expr) -> Expr | None:
        if len({str(part.ty.dtype) for part in parts}) > 1:
            return None
        return r.op.concat(list(parts), self.axis % len(parts[0].ty.shape.values))


@register
class FusedAddScalars(Op):
    """The tuple (x + c0, x + c1)."""

    c0: float
    c1: float

    samples = (sample((3, 4), c0=1.5, c1=-2.0), sample((), c0=1.0, c1=2.0))
    error_samples = (
        error(TypeError, "takes 1 input", (2,), (2,), c0=1.0, c1=2.0),
        error(TypeError, "scalar is a str", (2,), c0=1.0, c1="2"),
    )

    infer_first = True

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        return tuple(AddScalar(c).infer(x) for c in (self.c0, self.c1))

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        return x + self.c0, x + self.c1

    def compute(self, x: NDArray) -> tuple[NDArray, ...]:
        return x + self.c0, x + self.c1

    def gradient(self, out_grad: TensorTuple, node: TensorTuple) -> Tensor:
        return out_grad[0] + out_grad[1]

    def emit_te(self, k: TeNamespace, x: TeTensor) -> tuple[TeTensor, ...]:
        return tuple(AddScalar(c).emit_te(k, x) for c in (self.c0, self.c1))


def make_tuple(*parts: Tensor) -> TensorTuple:
    """Return a TensorTuple of the tensors `parts`."""
    return apply(MakeTuple(), parts)


def tuple_get_item(value: TensorTuple, index: int) -> Tensor:
    """Return part `index` of `value`, a TensorTuple. Raises IndexError if there is no such part."""
    return apply(TupleGetItem(as_int(index)), (value,))


def stack(parts: Sequence[Tensor] | TensorTuple, axis: int = 0) -> Tensor:
    """Return the tensors `parts`, which have the same shape, stacked along a new `axis`. Raises
    ShapeError if the shapes differ.

    >>> ndl.stack([ndl.zeros(3), ndl.ones(3)], axis=1).shape
    (3, 2)
    """
    return _in_groups(Stack(axis), tuple(parts))


def split(a: Tensor, axis: int) -> TensorTuple:
    """Return the slices of `a` along `axis`, without that axis. (PyTorch's split is `split_sizes`.)

    >>> [part.shape for part in ndl.split(ndl.zeros(2, 3), axis=0)]
    [(3,), (3,)]
    """
    return apply(Split(axis), (a,))


def concat(parts: Sequence[Tensor] | TensorTuple, axis: int = 0) -> Tensor:
    """Return the tensors `parts` concatenated along `axis`. Raises ShapeError if their other
    extents differ.

    >>> ndl.concat([ndl.zeros(2, 3), ndl.ones(1, 3)]).shape
    (3, 3)
    """
    return _in_groups(Concat(as_int(axis)), tuple(parts))


def _in_groups(op: Stack | Concat, parts: tuple[Tensor, ...]) -> Tensor:
    """Apply `op` to the parts. In a trace, many parts are joined in groups, and then the groups are
    joined: TVM's and LLVM's passes are recursive, and a kernel with 2,000 parts crashes the
    process."""
    if state.trace is None or len(parts) <= WIDEST:
        return apply(op, parts)
    groups = [parts[i : i + WIDEST] for i in range(0, len(parts), WIDEST)]
    return concat([apply(op, group) for group in groups], op.axis)


def fused_add_scalars(a: Tensor, c0: float, c1: float) -> TensorTuple:
    """Return (a + c0, a + c1)."""
    return apply(FusedAddScalars(c0, c1), (a,))
