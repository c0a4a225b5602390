"""The k largest or smallest elements."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from ..autograd.dispatch import apply
from ..autograd.shapes import Spec, normalize_axis
from ..autograd.tensor import Tensor, TensorTuple
from ..backend_ndarray import NDArray, scans
from ..backend_ndarray.dtypes import is_floating, is_half
from ..errors import ShapeError
from ..op import Op, register
from ..op.samples import error, sample
from ..op.signatures import Expr, Stmt, TeNamespace, TeTensor
from . import _te
from ._scalars import takes_scalars
from ._scan import nothing
from .along_axis import PutAlongAxis, _filled
from .sorting import Sort, _checked

_COMPARED = 4  # instructions per element
_BLOCK = 16  # elements that are compared at once with the k-th best so far
_FEW = 64  # above this k, compiled code sorts all elements


@register
class Topk(Op):
    """(values, int64 positions) of the k largest elements along `axis`, the largest first, or of
    the k smallest, the smallest first. Equal elements keep their order; NaN counts as the largest.
    The gradient flows to the positions that the elements came from."""

    k: int
    axis: int = -1
    largest: bool = True

    infer_first = True
    reads = frozenset({"inputs", 1})
    samples = tuple(
        sample(shape, k=k, axis=axis, largest=largest)
        for shape, k, axis in (
            ((5,), 1, 0),
            ((3, 40), 3, -1),
            ((3, 4), 3, 0),
            ((2, 70), 66, 1),
            ((2, 3), 0, 1),
            ((0, 3), 2, 1),
        )
        for largest in (False, True)
    )
    error_samples = (
        error(ShapeError, "out of range", (2, 3), k=1, axis=2),
        error(ShapeError, r"k 4 is not within 0\.\.3", (2, 3), k=4),
    )

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        axis = normalize_axis(self.name, self.axis, x.ndim)
        if not 0 <= self.k <= x.shape[axis]:
            raise ShapeError(f"{self.name}: k {self.k} is not within 0..{x.shape[axis]}")
        shape = (*x.shape[:axis], self.k, *x.shape[axis + 1 :])
        return Spec(shape, x.dtype, x.device), Spec(shape, "int64", x.device)

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        return scans.topk(x, self.axis, self.largest, self.k)

    def compute(self, x: NDArray) -> tuple[NDArray, ...]:
        wide = x.astype("float32") if is_half(x.dtype) else x
        axis = self.axis % x.ndim
        values, places = scans.run("topk", wide, axis=axis, descending=self.largest, k=self.k)
        return values.astype(x.dtype, copy=False), places

    def gradient(self, out_grad: TensorTuple, node: TensorTuple) -> Tensor:
        (x,) = node.inputs
        grad = out_grad[0]
        zeros = _filled(grad, 0, grad.dtype, x.shape)
        return apply(PutAlongAxis("add", self.axis), (zeros, node[1], grad))

    def emit_te(self, k: TeNamespace, x: TeTensor) -> tuple[TeTensor, ...]:
        dtype, ndim = _te.dtype_of(x), len(x.shape)
        axis = self.axis % ndim
        shape = [self.k if i == axis else n for i, n in enumerate(x.shape)]
        if any(_te.is_zero(n) for n in shape):
            return nothing(k, shape, dtype), nothing(k, shape, "int64")
        if self.k > _FEW:
            values, places = Sort(self.axis, self.largest).emit_te(k, x)
            first = k.te.compute(shape, lambda *i: values(*i))
            return first, k.te.compute(shape, lambda *i: places(*i))
        x = _te.cast(k, x, "int32") if dtype == "bool" else x
        turn = [*(i for i in range(ndim) if i != axis), axis]
        x = k.topi.transpose(x, turn) if axis != ndim - 1 else x
        found = self._insert(k, x)
        if axis != ndim - 1:
            back = [turn.index(i) for i in range(ndim)]
            found = [k.topi.transpose(part, back) for part in found]
        return _te.cast(k, found[0], dtype), found[1]

    def _insert(self, k: TeNamespace, x: TeTensor) -> list[TeTensor]:
        """Return the k best elements and their positions, kept in order by insertion. Most elements
        are only compared with the k-th best so far; they are compared in blocks, so that the
        comparisons are vector instructions."""
        dtype, n = _te.dtype_of(x), x.shape[-1]
        floating = is_floating(dtype)
        rows = prod(x.shape[:-1], start=k.tirx.const(1, "int64"))

        def better(b: Expr, a: Expr) -> Expr:
            """Return whether b belongs before a, which comes earlier along the axis."""
            high, low = (b, a) if self.largest else (a, b)
            above = high > low
            if floating:
                number = k.tirx.Not(k.tirx.isnan(low))
                above = k.tirx.any(above, k.tirx.all(k.tirx.isnan(high), number))
            return above

        def may_be_better(b: Expr, a: Expr) -> Expr:
            """Return a cheaper condition that is true whenever `better` is; the condition picks the
            elements to compare again."""
            above = b > a if self.largest else b < a
            return k.tirx.any(above, k.tirx.isnan(b if self.largest else a)) if floating else above

        def write(s: Any, ins: Sequence[Any], outs: Sequence[Any]) -> None:
            source, values, places = map(s.buffer_proxy, (*ins, *outs))
            with _te.tasks(s, rows, rows * n * _COMPARED) as row:
                at = s.buffer_proxy(s.alloc_buffer((1,), "int64", scope="local"))
                flag = s.buffer_proxy(s.alloc_buffer((1,), "int32", scope="local"))
                base, last = row * self.k, row * self.k + self.k - 1

                def insert(i: Expr, place: Expr) -> None:
                    """Insert element i in order among the elements before `place`."""
                    value = source[row * n + i]
                    at[0] = place
                    before = base + k.tirx.max(at[0] - 1, 0)
                    with s.While(k.tirx.all(at[0] > 0, better(value, values[before]))):
                        values[base + at[0]] = values[base + at[0] - 1]
                        places[base + at[0]] = places[base + at[0] - 1]
                        at[0] = at[0] - 1
                    values[base + at[0]] = value
                    places[base + at[0]] = k.tirx.Cast("int64", i)

                def compare(i: Expr) -> None:
                    """Insert element i if it is better than the k-th best so far."""
                    value = source[row * n + i]
                    with s.If(may_be_better(value, values[last])), s.Then():
                        with s.If(better(value, values[last])), s.Then():
                            insert(i, k.tirx.const(self.k - 1, "int64"))

                with s.serial(0, self.k) as i:
                    insert(i, k.tirx.Cast("int64", i))
                blocks = k.tirx.floordiv(n - self.k, _BLOCK)
                with s.serial(0, blocks) as block:
                    first = block * _BLOCK + self.k
                    here = row * n + first
                    _te.any_in(
                        k, s, flag, _BLOCK, lambda j: may_be_better(source[here + j], values[last])
                    )
                    with s.If(flag[0] != 0), s.Then(), s.serial(0, _BLOCK) as j:
                        compare(first + j)
                compared = blocks * _BLOCK + self.k
                with s.serial(0, n - compared) as j:
                    compare(compared + j)

        def body(ins: Sequence[Any], outs: Sequence[Any]) -> Stmt:
            return k.statements(lambda s: write(s, ins, outs))

        shape = [*x.shape[:-1], self.k]
        outputs = k.te.extern([shape] * 2, [x], body, dtype=[dtype, "int64"], name="topk")
        return list(outputs)


@takes_scalars
def topk(a: Tensor, k: int, axis: int = -1, largest: bool = True) -> TensorTuple:
    """Return (values, int64 positions) of the `k` largest elements along `axis`, the largest first,
    or with largest=False of the `k` smallest, the smallest first. Equal elements keep their order;
    NaN counts as the largest. Raises ShapeError if `axis` has fewer than `k` elements.

    >>> values, positions = ndl.topk(ndl.Tensor([3.0, 1.0, 2.0]), 2)
    >>> values.numpy().tolist(), positions.numpy().tolist()
    ([3.0, 2.0], [0, 2])
    """
    axis, k = _checked("topk", a, k, axis, 0)
    return apply(Topk(k, axis, bool(largest)), (a,))
