"""The common part of ops that read or write elements at positions given by an index."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from ..autograd.shapes import Spec
from ..backend_ndarray.dtypes import INTEGER
from ..op import Op
from ..op.samples import Arg
from ..op.signatures import Expr, Extent, Stmt, TeNamespace, TeTensor
from . import _te

# The new element at a position: the last element put there, the sum or the product of the old
# element and all elements put there, or the largest or smallest of them.
HOW = ("set", "add", "mul", "max", "min")

# Number of adjacent elements that one task handles: enough for vectors, few enough to share the
# work. It is lower, down to a few cache lines, if no other axis divides the work.
_COLUMNS, _FEW_COLUMNS = 256, 32
# Number of elements that one task copies.
_PIECE = 1 << 14

# Annotation of loops that copy an input before the output is written. Code that overwrites its
# input omits these loops.
COPIED = "needle.copied"


class Index(Op):
    """Base of ops that move elements along `axis` by an index."""

    axis: int

    infer_first = True
    reads = frozenset({"inputs"})  # the index

    def at(self, k: TeNamespace, index: TeTensor, i: Sequence[Expr], n: Extent) -> Expr:
        """Return, for `emit_te`, the position that index[i] names along an axis of extent n. It is
        clamped, so that memory beyond the tensor is never read."""
        value = k.tirx.Cast("int64", index(*i))
        place = k.tirx.Select(value < 0, value + n, value)
        return k.tirx.max(k.tirx.min(place, n - 1), k.tirx.const(0, "int64"))


def check_index(name: str, index: Spec) -> None:
    """Raise TypeError unless the index holds integers."""
    if index.dtype not in INTEGER:
        raise TypeError(f"{name}: the index is {index.dtype}; it must hold integers")


def positions(*shape: int, low: int = 0, high: int = 3, dtype: str = "int64") -> Arg:
    """Return an index for an op's samples."""
    return Arg(shape, low, high, dtype=dtype, special=False)


def put_te(
    k: TeNamespace,
    base: TeTensor | None,
    index: TeTensor,
    source: TeTensor,
    shape: Sequence[Extent],
    axis: int,
    how: str,
    name: str,
    each: bool = False,
) -> TeTensor:
    """Return a tensor of this `shape`: a copy of `base` (None: zeros) with the elements of `source`
    put at the positions along `axis` that the index names. Positions out of range are skipped.

    With `each`, the index has the source's shape. Without it, the source has the index's axes in
    place of `axis`, and each position takes a whole slice. Threads divide the other axes, so that
    elements for the same position are combined in the order of the index.
    """
    end = axis + (1 if each else len(index.shape))
    dtype, extent = _te.dtype_of(source), shape[axis]
    if any(_te.is_zero(n) for n in source.shape):
        zeros = k.te.compute(shape, lambda *_: _te.full_like(k, source, 0))
        return zeros if base is None else k.topi.identity(base)
    one = k.tirx.const(1, "int64")
    outer, count, row = (
        prod(source.shape[part], start=one)
        for part in (slice(axis), slice(axis, end), slice(end, None))
    )
    columns = k.te.min(row, _COLUMNS)
    if _te.is_one(outer):
        quarter = k.tirx.floordiv(row, 4 * _FEW_COLUMNS) * _FEW_COLUMNS
        columns = k.te.min(k.te.max(quarter, _FEW_COLUMNS), columns)
    blocks = k.tirx.floordiv(row + columns - 1, columns)
    total = outer * extent * row
    notes = {COPIED: 1} if base is not None else {}
    alone = _te.is_one(outer * blocks)  # if so, several tasks copy first, then one task puts all

    def element(at: Expr, place: Expr, j: Expr) -> list[Expr]:
        """Return the index of an element in the result: its axes before, at and after `axis`."""
        return [*_te.unravel(k, at, shape[:axis]), place, *_te.unravel(k, j, shape[axis + 1 :])]

    def copy(s: Any, old: Any, out: Any, at: list[Expr]) -> None:
        s.buffer_store(out, _te.full_like(k, source, 0) if old is None else old[tuple(at)], at)

    def copy_whole(s: Any, old: Any, out: Any) -> None:
        tasks = k.tirx.floordiv(total + _PIECE - 1, _PIECE)
        with s.parallel(0, tasks, annotations=notes) as task:
            with s.serial(0, k.te.min(total - task * _PIECE, _PIECE)) as i:
                copy(s, old, out, _te.unravel(k, task * _PIECE + i, shape))

    def put_all(s: Any, old: Any, where: Any, new: Any, out: Any) -> None:
        with s.parallel(0, outer * blocks) as task:
            at, first = k.tirx.floordiv(task, blocks), k.tirx.floormod(task, blocks) * columns
            width = k.te.min(columns, row - first)
            if not alone:
                with s.serial(0, extent, annotations=notes) as i, s.serial(0, width) as j:
                    copy(s, old, out, element(at, i, first + j))

            def put_one(place: Expr, i: Expr, j: Expr) -> None:
                to = element(at, place, j)
                value = new[tuple(source_at(i, j))]
                s.buffer_store(out, combined(out[tuple(to)], value), to)

            def source_at(i: Expr, j: Expr) -> list[Expr]:
                middle = _te.unravel(k, i, source.shape[axis:end])
                return [
                    *_te.unravel(k, at, source.shape[:axis]),
                    *middle,
                    *_te.unravel(k, j, source.shape[end:]),
                ]

            with s.serial(0, count) as i:
                if each:
                    with s.serial(0, width) as j:
                        place = position(where[tuple(source_at(i, first + j))])
                        with s.If(inside(place)), s.Then():
                            put_one(place, i, first + j)
                else:
                    place = position(where[tuple(_te.unravel(k, i, index.shape))])
                    with s.If(inside(place)), s.Then(), s.serial(0, width) as j:
                        put_one(place, i, first + j)

    def combined(old: Expr, new: Expr) -> Expr:
        if how == "add":
            return old + new
        if how == "mul":
            return old * new
        if how == "max":
            return _te.greater_or_nan(k, old, new, dtype)
        return _te.less_or_nan(k, old, new, dtype) if how == "min" else new

    def position(value: Expr) -> Expr:
        value = k.tirx.Cast("int64", value)
        return k.tirx.Select(value < 0, value + extent, value)

    def inside(place: Expr) -> Expr:
        return k.tirx.all(place >= 0, place < extent)

    def body(ins: Sequence[Any], outs: Sequence[Any]) -> Stmt:
        old, where, new = [None, *ins] if base is None else ins
        (out,) = outs
        puts = k.statements(lambda s: put_all(s, old, where, new, out))
        if not alone:
            return puts
        return k.tirx.SeqStmt([k.statements(lambda s: copy_whole(s, old, out)), puts])

    inputs = [index, source] if base is None else [base, index, source]
    return k.te.extern([tuple(shape)], inputs, body, dtype=dtype, name=name)
