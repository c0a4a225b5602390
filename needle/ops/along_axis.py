"""Ops that read or write one position along an axis for each element of an index.

`put_along_axis` and `put` return a copy of their first input. Elements for the same position are
combined in the order of the index, whatever the number of threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..autograd.dispatch import apply
from ..autograd.shapes import Shape, Spec, broadcast_shapes, common_device, normalize_axis
from ..autograd.tensor import Tensor, make_const
from ..backend_ndarray import NDArray, array, full
from ..backend_ndarray.dtypes import compute_dtype
from ..backend_ndarray.ndarray import wrap
from ..errors import ShapeError
from ..op import register
from ..op.samples import Arg, error, sample
from ..op.signatures import Gradients, TeNamespace, TeTensor
from ._arguments import as_source, check_tensors
from ._index import HOW, Index, check_index, positions, put_te
from .arange import arange
from .arithmetic import compare, where
from .elementwise import cast
from .index import Take
from .shape import broadcast_to, reshape


@register
class TakeAlongAxis(Index):
    """y[..., j, ...] = x[..., index[..., j, ...], ...] along `axis`. The index has as many axes as
    x, and the same extents except along `axis`. Negative positions count from the end."""

    axis: int = 0

    moves = True
    samples = (
        sample((3, 4), positions(5, 4)),
        sample((2, 4, 3), positions(2, 2, 3, low=-4, high=4, dtype="int32"), axis=1),
        sample((2, 3), positions(2, 3), axis=-1),
        sample((3,), positions(7)),
        sample((2, 3), positions(0, 3)),
        sample((0, 3), positions(0, 2), axis=1),
    )
    error_samples = (
        error(TypeError, "float32", (3, 4), (3, 4)),
        error(ShapeError, r"\(2, 3\) .* \(3, 4\)", (3, 4), positions(2, 3)),
        error(ShapeError, "has 1 axes", (3, 4), positions(3)),
        error(ShapeError, "out of range", (3, 4), positions(3, 4), axis=2),
    )

    def infer(self, x: Spec, index: Spec) -> Spec:
        _check_along(self.name, x, index, self.axis)
        return Spec(index.shape, x.dtype, common_device(self.name, x, index))

    def index_ranges(self, x: Spec, index: Spec) -> dict[int, tuple[int, int]]:
        extent = x.shape[self.axis]
        return {1: (-extent, extent - 1)}

    def reference(self, x: np.ndarray, index: np.ndarray) -> np.ndarray:
        return np.take_along_axis(x, index, self.axis)

    def compute(self, x: NDArray, index: NDArray) -> NDArray:
        axis = self.axis % x.ndim
        return wrap(x.device, x.device.kernels.take_along(x.view, index.view, axis))

    def gradient(self, out_grad: Tensor, node: Tensor) -> Gradients:
        x, index = node.inputs
        zeros = _filled(out_grad, 0, out_grad.dtype, x.shape)
        return apply(PutAlongAxis("add", self.axis), (zeros, index, out_grad)), None

    def emit_te(self, k: TeNamespace, x: TeTensor, index: TeTensor) -> TeTensor:
        axis = self.axis % len(x.shape)
        n = x.shape[axis]
        return k.te.compute(
            index.shape, lambda *o: x(*o[:axis], self.at(k, index, o, n), *o[axis + 1 :])
        )


class _Put(Index):
    how: str

    reads = frozenset({"inputs", "output"})
    compares = True

    def infer(self, x: Spec, index: Spec, source: Spec) -> Spec:
        if self.how not in HOW:
            raise ValueError(f"{self.name}: how {self.how!r} is not one of {', '.join(HOW)}")
        if x.dtype != source.dtype:
            raise TypeError(
                f"{self.name}: elements of {source.dtype} cannot be put into {x.dtype}; cast them"
            )
        if x.dtype == "bool" and self.how != "set":
            raise TypeError(f"{self.name}: how {self.how!r} is not for bool; use 'set', or cast")
        if source.shape != self.source_shape(x, index):
            raise ShapeError(
                f"{self.name}: an index of shape {index.shape} along axis {self.axis} of {x.shape} "
                f"takes {self.source_shape(x, index)}, not {source.shape}"
            )
        return Spec(x.shape, x.dtype, common_device(self.name, x, index, source))

    def source_shape(self, x: Spec, index: Spec) -> Shape:
        """Return the shape that the source must have. Raises TypeError or ShapeError for an index
        that does not fit."""
        raise NotImplementedError(f"{self.name}: source_shape is not defined")

    def index_ranges(self, x: Spec, index: Spec, source: Spec) -> dict[int, tuple[int, int]]:
        extent = x.shape[self.axis]
        return {1: (-extent, extent - 1)}

    def taken(self, x: Tensor, index: Tensor) -> Tensor:
        """Return the elements of x at the positions, in the source's shape."""
        raise NotImplementedError(f"{self.name}: taken is not defined")

    def put(self, how: str, x: Tensor, index: Tensor, source: Tensor) -> Tensor:
        """Apply this op with another `how`."""
        return apply(type(self)(how=how, axis=self.axis), (x, index, source))  # type: ignore

    def last(self, x: Tensor, index: Tensor) -> Tensor:
        """Return whether each source element is the last one for its position; the result
        broadcasts."""
        raise NotImplementedError(f"{self.name}: last is not defined")

    def gradient(self, out_grad: Tensor, node: Tensor) -> Gradients:
        x, index, source = node.inputs
        if self.how == "add":
            return out_grad, None, self.taken(out_grad, index) if source.requires_grad else None
        zero = _filled(out_grad, 0, out_grad.dtype, source.shape)
        if self.how == "set":
            to_source = None
            if source.requires_grad:
                to_source = where(self.last(x, index), self.taken(out_grad, index), zero)
            return self.put("set", out_grad, index, zero), None, to_source
        if self.how == "mul":
            return self._of_product(out_grad, x, index, source)
        # Equal elements share the gradient of a position.
        of_x = cast(compare("equal", x, node), out_grad.dtype)
        of_source = cast(compare("equal", source, self.taken(node, index)), out_grad.dtype)
        share = out_grad / self.put("add", of_x, index, of_source)
        return of_x * share, None, of_source * self.taken(share, index)

    def _of_product(self, out_grad: Tensor, x: Tensor, index: Tensor, source: Tensor) -> Gradients:
        """Return the gradients of a product: out_grad times the other factors. They are right
        even where a factor is 0, because the other factors are multiplied without it."""
        to_x = self.put("mul", out_grad, index, source)
        if not source.requires_grad:
            return to_x, None, None
        zero, one = (_filled(source, n, source.dtype, source.shape) for n in (0, 1))
        is_zero = compare("equal", source, zero)
        zeros = _filled(x, 0, "int64", x.shape)
        others = self.put("add", zeros, index, cast(is_zero, "int64"))
        others = self.taken(others, index) - cast(is_zero, "int64")
        rest = self.taken(self.put("mul", x, index, where(is_zero, one, source)), index)
        rest = rest / where(is_zero, one, source)
        none = compare("equal", others, _filled(others, 0, "int64", others.shape))
        return to_x, None, where(none, self.taken(out_grad, index) * rest, zero)

    def product(self, x: NDArray, index: NDArray, source: NDArray) -> NDArray:
        """Return the result of `how` "mul", computed by NumPy: devices have no kernel for it."""
        factors = [each.astype(compute_dtype(x.dtype)).numpy() for each in (x, source)]
        made = self.reference(factors[0], index.numpy(), factors[1])
        return array(made, device=x.device).astype(x.dtype)


@register
class PutAlongAxis(_Put):
    """y = a copy of x in which y[..., index[..., j, ...], ...] along `axis` is set to
    source[..., j, ...], or to the sum of both (`how` "add"), their product ("mul"), the larger or
    the smaller ("max", "min"). The index has the source's shape: the shape of x except along
    `axis`. If positions repeat, "set" keeps the last element; the others combine all of them. Equal
    elements share the gradient of "max" and "min" equally."""

    how: str = "set"
    axis: int = 0

    samples = (
        *(sample((3, 4), positions(5, 4), Arg((5, 4)), how=how) for how in HOW),
        sample((2, 4, 3), positions(2, 6, 3, low=-4, high=4, dtype="int32"), (2, 6, 3), axis=1),
        sample((2, 3), positions(2, 3), (2, 3), how="max", axis=-1),
        sample((3,), positions(7), (7,), how="add"),
        sample((2, 3), positions(0, 3), (0, 3)),
        sample((0, 3), positions(0, 2), (0, 2), how="add", axis=1),
    )
    error_samples = (
        error(TypeError, "float32", (3, 4), (3, 4), (3, 4)),
        error(TypeError, "elements of float64", (3,), positions(3), Arg((3,), dtype="float64")),
        error(ShapeError, r"\(2, 3\) .* \(3, 4\)", (3, 4), positions(2, 3), (2, 3)),
        error(ShapeError, r"takes \(2, 4\)", (3, 4), positions(2, 4), (4,)),
        error(ValueError, "'mean' is not one of", (3,), positions(2), (2,), how="mean"),
        error(
            TypeError,
            "not for bool",
            *(Arg((3,), dtype="bool"), positions(2), Arg((2,), dtype="bool")),
            how="add",
        ),
    )

    def source_shape(self, x: Spec, index: Spec) -> Shape:
        _check_along(self.name, x, index, self.axis)
        return index.shape

    def reduction_length(self, x: Spec, index: Spec, source: Spec) -> int:
        return index.shape[self.axis] + 1 if self.how == "add" else 1

    def reference(self, x: np.ndarray, index: np.ndarray, source: np.ndarray) -> np.ndarray:
        places: list[Any] = list(np.indices(index.shape))
        places[self.axis] = index
        return _put(self.how, x, tuple(places), source)

    def compute(self, x: NDArray, index: NDArray, source: NDArray) -> NDArray:
        axis, kernel = self.axis % x.ndim, x.device.kernels.put_along
        if self.how == "mul":
            return self.product(x, index, source)
        return wrap(x.device, kernel(x.view, index.view, source.view, axis, self.how))

    def taken(self, x: Tensor, index: Tensor) -> Tensor:
        return apply(TakeAlongAxis(self.axis), (x, index))

    def last(self, x: Tensor, index: Tensor) -> Tensor:
        axis = self.axis % x.ndim
        line = [1] * x.ndim
        line[axis] = index.shape[axis]
        order = reshape(arange(index.shape[axis], device=x.device), line)
        order = broadcast_to(order, index.shape)
        there = self.put("set", _filled(x, 0, order.dtype, x.shape), index, order)
        return compare("equal", self.taken(there, index), order)

    def emit_te(self, k: TeNamespace, x: TeTensor, index: TeTensor, source: TeTensor) -> TeTensor:
        axis = self.axis % len(x.shape)
        return put_te(k, x, index, source, x.shape, axis, self.how, self.name, each=True)


_SLICE = 16  # a slice with fewer elements is not worth a loop of its own


@register
class Put(_Put):
    """y = a copy of x whose slices along `axis` at the positions of an integer index are set to the
    slices of the source, or to the sum of both (`how` "add"), their product ("mul"), the larger or
    smaller elements ("max", "min"). These are the slices that `take` reads; the index may have any
    shape, and source.shape is x.shape[:axis] + index.shape + x.shape[axis + 1:]. If positions
    repeat, "set" keeps the last slice; the others combine all of them. Equal elements share the
    gradient of "max" and "min" equally."""

    how: str = "set"
    axis: int = 0

    samples = (
        *(sample((3, 4), positions(5), Arg((5, 4)), how=how) for how in HOW),
        sample((3, 5), positions(2, 3, low=-5, high=5, dtype="int32"), (3, 2, 3), axis=1),
        sample((2, 3, 2), positions(2, low=-3), (2, 2, 2), how="add", axis=-2),
        sample((3,), positions(), (), how="max"),
        sample((4,), positions(2, 3), (2, 3)),
        sample((3, 2), positions(0), (0, 2)),
        sample((3, 0), positions(2), (2, 0)),
    )
    error_samples = (
        error(TypeError, "float32", (3, 4), (2,), (2, 4)),
        error(TypeError, "elements of float64", (3,), positions(3), Arg((3,), dtype="float64")),
        error(ShapeError, r"takes \(2, 4\)", (3, 4), positions(2), (2, 3)),
        error(ShapeError, "out of range", (), positions(2), (2,)),
        error(ValueError, "'mean' is not one of", (3,), positions(2), (2,), how="mean"),
    )

    def source_shape(self, x: Spec, index: Spec) -> Shape:
        check_index(self.name, index)
        axis = normalize_axis(self.name, self.axis, x.ndim)
        return (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])

    def reduction_length(self, x: Spec, index: Spec, source: Spec) -> int:
        return int(np.prod(index.shape)) + 1 if self.how == "add" else 1

    def reference(self, x: np.ndarray, index: np.ndarray, source: np.ndarray) -> np.ndarray:
        return _put(self.how, x, (*[slice(None)] * (self.axis % x.ndim), index), source)

    def compute(self, x: NDArray, index: NDArray, source: NDArray) -> NDArray:
        axis, kernels = self.axis % x.ndim, x.device.kernels
        if self.how == "mul":
            return self.product(x, index, source)
        if self.how in ("set", "add") and source.size >= _SLICE * index.size:
            out = x.copy()
            put = kernels.scatter if self.how == "set" else kernels.scatter_add
            put(out.view, index.view, source.view, axis)
            return out
        # The index's axes are merged into one; each position applies to all elements of a slice.
        end = axis + index.ndim
        shape = (*x.shape[:axis], index.size, *x.shape[axis + 1 :])
        line = (index.size, *[1] * (source.ndim - end))
        every = index.reshape(line).broadcast_to(shape)
        source = source.reshape(shape)
        return wrap(x.device, kernels.put_along(x.view, every.view, source.view, axis, self.how))

    def taken(self, x: Tensor, index: Tensor) -> Tensor:
        return apply(Take(self.axis), (x, index))

    def last(self, x: Tensor, index: Tensor) -> Tensor:
        axis = self.axis % x.ndim
        order = reshape(arange(index.size, device=x.device), index.shape)
        there = _filled(x, 0, order.dtype, (x.shape[axis],))
        there = apply(Put("set"), (there, index, order))
        last = compare("equal", apply(Take(), (there, index)), order)
        return reshape(last, (*index.shape, *[1] * (x.ndim - 1 - axis)))

    def emit_te(self, k: TeNamespace, x: TeTensor, index: TeTensor, source: TeTensor) -> TeTensor:
        axis = self.axis % len(x.shape)
        return put_te(k, x, index, source, x.shape, axis, self.how, self.name)


def _check_along(name: str, x: Spec, index: Spec, axis: int) -> None:
    check_index(name, index)
    axis = normalize_axis(name, axis, x.ndim)
    if index.ndim != x.ndim:
        raise ShapeError(f"{name}: the index has {index.ndim} axes, {x.shape} has {x.ndim}")
    if (*index.shape[:axis], *index.shape[axis + 1 :]) != (*x.shape[:axis], *x.shape[axis + 1 :]):
        raise ShapeError(
            f"{name}: the index {index.shape} and {x.shape} must be equal except along axis {axis}"
        )


def _put(how: str, x: np.ndarray, places: Any, source: np.ndarray) -> np.ndarray:
    out = np.array(x)
    if how == "set":
        out[places] = source
    else:
        combine = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
        combine[how].at(out, places, source)
    return out


def _filled(like: Tensor, value: float, dtype: str, shape: Shape) -> Tensor:
    """Return a constant on like's device; its elements share memory."""
    return broadcast_to(make_const(full((), value, dtype, like.device)), shape)


def _joined(name: str, a: Tensor, index: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """Return both tensors broadcast along all axes but `axis`. Raises ShapeError if they do not
    broadcast."""
    if not isinstance(a, Tensor) or not isinstance(index, Tensor) or a.ndim != index.ndim:
        return a, index  # the op raises the error
    axis = normalize_axis(name, axis, a.ndim)

    def rest(x: Tensor) -> Shape:
        return (*x.shape[:axis], 1, *x.shape[axis + 1 :])

    common = broadcast_shapes(name, rest(a), rest(index))
    both = [(*common[:axis], x.shape[axis], *common[axis + 1 :]) for x in (a, index)]
    return broadcast_to(a, both[0]), broadcast_to(index, both[1])


def take_along_axis(a: Tensor, index: Tensor, axis: int) -> Tensor:
    """Return the element of `a` at each position along `axis` that `index` names, like NumPy's
    take_along_axis. `index` is an integer Tensor with as many axes as `a`; both broadcast along the
    other axes.

    Negative positions count from the end. Raises IndexError for a position out of range. A compiled
    function checks the indices it is called with, and clamps those that it computes itself.

    >>> a = ndl.Tensor([[3.0, 1.0], [2.0, 4.0]])
    >>> ndl.take_along_axis(a, ndl.argsort(a, 1), 1).numpy().tolist()
    [[1.0, 3.0], [2.0, 4.0]]
    """
    return apply(TakeAlongAxis(axis), _joined("take_along_axis", a, index, axis))


def put_along_axis(
    a: Tensor, index: Tensor, source: Tensor | float, axis: int, how: str = "set"
) -> Tensor:
    """Return a copy of `a` with the elements of `source` at the positions of `index` along `axis`.
    `how` is "set" (the last element for a position wins) or "add", "mul", "max" or "min", which
    combine all elements for a position with the old one. `source` broadcasts to index's shape; `a`
    and `index` broadcast along the other axes.

    Raises IndexError for a position out of range. A compiled function checks the indices it is
    called with, and skips invalid ones that it computes itself.
    """
    check_tensors("put_along_axis", a=a, index=index)
    a, index = _joined("put_along_axis", a, index, axis)
    source = as_source("put_along_axis", a, source, index.shape)
    return apply(PutAlongAxis(how, axis), (a, index, source))


def put(
    a: Tensor, index: Tensor, source: Tensor | float, axis: int = 0, how: str = "set"
) -> Tensor:
    """Return a copy of `a` whose slices along `axis` at the positions of an integer `index`, of any
    shape, are replaced by the slices of `source` (`how` "set") or combined with them ("add", "mul",
    "max", "min"). `source` broadcasts to a.shape[:axis] + index.shape + a.shape[axis + 1:].

    Raises IndexError for a position out of range. A compiled function checks the indices it is
    called with, and skips invalid ones that it computes itself.
    """
    check_tensors("put", a=a, index=index)
    at = normalize_axis("put", axis, a.ndim)
    shape = (*a.shape[:at], *index.shape, *a.shape[at + 1 :])
    return apply(Put(how, axis), (a, index, as_source("put", a, source, shape)))
