"""The largest or smallest element up to each position along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from operator import index as as_int
from typing import Any

import numpy as np

from ..autograd.dispatch import apply
from ..autograd.shapes import Spec, normalize_axis
from ..autograd.tensor import Tensor, TensorTuple
from ..backend_ndarray import NDArray, scans
from ..backend_ndarray.dtypes import is_floating, is_half
from ..op import register
from ..op.signatures import Expr, Stmt, TeNamespace, TeTensor
from . import _te
from ._scalars import takes_scalars
from ._scan import Along
from .along_axis import PutAlongAxis, _filled
from .scan import _SAMPLES

_BLOCK = 16  # elements that are compared at once with the best so far
_STEP = 2  # instructions per element, in most blocks


class _Running(Along):
    """Base of cummax and cummin, which return (values, int64 positions)."""

    largest = True
    reads = frozenset({1})
    rows = 2  # with more rows, LLVM would build vectors element by element
    samples = _SAMPLES

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        normalize_axis(self.name, self.axis, x.ndim)
        return x, Spec(x.shape, "int64", x.device)

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        out: tuple[np.ndarray, ...] = getattr(scans, self.name)(x, self.axis)
        return out

    def compute(self, x: NDArray) -> tuple[NDArray, ...]:
        dtype = x.view.dtype
        if is_half(dtype):
            values, places = self.compute(x.astype("float32"))
            return values.astype(dtype), places
        found: tuple[NDArray, ...] = scans.run(self.name, x, axis=self.line_axis(x))
        return found

    def gradient(self, out_grad: TensorTuple, node: TensorTuple) -> Tensor:
        grad = out_grad[0]
        zeros = _filled(grad, 0, grad.dtype, grad.shape)
        return apply(PutAlongAxis("add", self.axis), (zeros, node[1], grad))

    def emit_te(self, k: TeNamespace, x: TeTensor) -> tuple[TeTensor, ...]:
        dtype = _te.dtype_of(x)
        source = _te.cast(k, x, {"bool": "int32", "bfloat16": "float32"}.get(dtype, dtype))
        kinds = [_te.dtype_of(source), "int64"]
        axis = self.axis % len(x.shape)
        inner = prod(x.shape[axis + 1 :], start=k.tirx.const(1, "int64"))
        long = getattr(x.shape[axis], "value", 2 * _BLOCK) >= 2 * _BLOCK
        if _te.is_one(inner) and long and not any(map(_te.is_zero, x.shape)):
            values, places = self._by_blocks(k, source, kinds)
        else:
            values, places = self.lines(k, [source], kinds, kinds, partial(self._step, k))
        return _te.cast(k, values, dtype), places

    def _taken(self, k: TeNamespace, value: Expr, best: Expr) -> Expr:
        """Return whether a value replaces the best value so far."""
        taken = self._reaches(value, best)
        return k.tirx.any(taken, k.tirx.isnan(value)) if is_floating(_dtype(value)) else taken

    def _reaches(self, value: Expr, best: Expr) -> Expr:
        return value >= best if self.largest else value <= best

    def _step(
        self,
        k: TeNamespace,
        ins: list[Any],
        outs: list[Any],
        states: list[Any],
        i: Expr,
        place: Any,
        j: Any,
        first: bool,
    ) -> None:
        further = _te.greater_or_nan if self.largest else _te.less_or_nan
        value, (best, where) = ins[0][place], states
        if first:
            best[j], where[j] = value, i
        else:
            # The position comes first, because `_taken` reads the old best value.
            where[j] = k.tirx.Select(self._taken(k, value, best[j]), i, where[j])
            # `further` compares again, so that comparison and choice are one instruction. The next
            # step waits only for that instruction.
            best[j] = further(k, value, best[j], _dtype(value))
        outs[0][place], outs[1][place] = best[j], where[j]

    def _by_blocks(self, k: TeNamespace, x: TeTensor, kinds: Sequence[str]) -> list[TeTensor]:
        """Return the results of rows, computed in blocks. Most blocks contain no better element;
        their results repeat the best so far. Blocks that improve with every element are copied.
        Only the other blocks take a step for each element."""
        axis = self.axis % len(x.shape)  # any axes after it have extent 1
        n, rows = x.shape[axis], prod(x.shape[:axis], start=k.tirx.const(1, "int64"))

        def write(s: Any, ins: Sequence[Any], outs: Sequence[Any]) -> None:
            source, values, places = map(s.buffer_proxy, (*ins, *outs))
            with _te.tasks(s, rows, rows * n * _STEP) as row:
                best, where, flag = (
                    s.buffer_proxy(s.alloc_buffer((1,), kind, scope="local"))
                    for kind in (*kinds, "int32")
                )
                base = row * n
                best[0], where[0] = source[base], k.tirx.const(0, "int64")

                def taken(at: Expr) -> Expr:
                    return self._taken(k, source[at], best[0])

                def rises(at: Expr) -> Expr:
                    return self._reaches(source[at + 1], source[at])

                def step(i: Expr) -> None:
                    lists = [source], [values, places], [best, where]
                    self._step(k, *lists, k.tirx.Cast("int64", i), base + i, 0, False)

                def repeat(at: Expr) -> None:
                    with s.serial(0, _BLOCK) as j:
                        values[at + j], places[at + j] = best[0], where[0]

                def copy(at: Expr, first: Expr) -> None:
                    with s.serial(0, _BLOCK) as j:
                        values[at + j] = source[at + j]
                        places[at + j] = k.tirx.Cast("int64", first + j)
                    best[0] = source[at + _BLOCK - 1]
                    where[0] = k.tirx.Cast("int64", first + _BLOCK - 1)

                def find(at: Expr, first: Expr) -> None:
                    """Copy or step through the block at `at`, which begins with the row's element
                    `first`."""
                    _te.all_in(k, s, flag, _BLOCK - 1, lambda j: rises(at + j))
                    with s.If(k.tirx.all(flag[0] != 0, self._reaches(source[at], best[0]))):
                        with s.Then():
                            copy(at, first)
                        with s.Else(), s.serial(0, _BLOCK) as j:
                            step(first + j)

                blocks = k.tirx.floordiv(n, _BLOCK)
                with s.serial(0, blocks) as block:
                    at = base + block * _BLOCK
                    _te.any_in(k, s, flag, _BLOCK, lambda j: taken(at + j))
                    with s.If(flag[0] == 0):
                        with s.Then():
                            repeat(at)
                        with s.Else():
                            find(at, block * _BLOCK)
                with s.serial(blocks * _BLOCK, n) as i:
                    step(i)

        def body(ins: Sequence[Any], outs: Sequence[Any]) -> Stmt:
            return k.statements(lambda s: write(s, ins, outs))

        made = k.te.extern([x.shape] * 2, [x], body, dtype=list(kinds), name=self.name)
        return list(made)


@register
class Cummax(_Running):
    """(values, positions): the largest element up to each position along `axis`, or NaN from the
    first NaN on, and the last position of that element. The gradient flows to that position."""

    axis: int = -1


@register
class Cummin(_Running):
    """(values, positions): the smallest element up to each position along `axis`, or NaN from the
    first NaN on, and the last position of that element. The gradient flows to that position."""

    axis: int = -1
    largest = False


def _dtype(x: Expr) -> str:
    return str(x.ty)


@takes_scalars
def cummax(a: Tensor, axis: int) -> TensorTuple:
    """Return (values, int64 positions) of the largest element up to each position along `axis`.

    >>> ndl.cummax(ndl.Tensor([1.0, 3.0, 2.0]), 0)[0].numpy().tolist()
    [1.0, 3.0, 3.0]
    """
    return apply(Cummax(as_int(axis)), (a,))


@takes_scalars
def cummin(a: Tensor, axis: int) -> TensorTuple:
    """Return (values, int64 positions) of the smallest element up to each position along `axis`."""
    return apply(Cummin(as_int(axis)), (a,))
