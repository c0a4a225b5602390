"""Several schedules of a function in one, of which its code picks one by size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from needle_tvm._tvm.names import PrimFunc, s_tir, tirx
from needle_tvm.tir import nests
from needle_tvm.tir.extents import symbols_of


def either(function: PrimFunc, variants: Sequence[tuple[Any, PrimFunc]]) -> PrimFunc:
    """Return the function that runs the first of `variants` whose condition holds, or the last one.

    Variants are schedules of `function`, whose parameters and variables may have other names. A
    condition is an expression of the variables in the shapes of `function`'s parameters.
    """
    *first, (_, last) = variants
    if not first:
        return last
    body = _renamed(function, last, len(first))
    for number, (condition, scheduled) in reversed(list(enumerate(first))):
        body = tirx.IfThenElse(condition, _renamed(function, scheduled, number), body)
    root = s_tir.SBlockRealize([], True, s_tir.SBlock([], [], [], "root", body))
    return function.with_body(root)


def covers_best(m: Any, rows: int, largest: int, among: Sequence[int]) -> Any:
    """Return whether tiles of `rows` rows are best for m rows, given that no smaller ones are:
    one of them holds all rows, or there are more than the largest tile has and these cover them
    with the fewest to spare of the tiles `among`, if it has any."""
    fits = m <= tirx.const(rows, "int64")
    if not among:
        return fits
    best = m > tirx.const(largest, "int64")
    for other in among:
        if other != rows:
            best = tirx.all(best, _covered(m, rows) < _covered(m, other))
    return tirx.any(fits, best)


def _covered(m: Any, rows: int) -> Any:
    """Return the rows of all tiles."""
    return tirx.floordiv(m + (rows - 1), tirx.const(rows, "int64")) * rows


def _renamed(function: PrimFunc, scheduled: PrimFunc, number: int) -> Any:
    """Return a variant's body: of the parameters and symbolic extents of `function`, with other variables
    of its own, and with a name of its own for its root block."""
    own = s_tir.renew_defs(scheduled)
    values = dict(zip(own.params, function.params, strict=True))
    values |= dict(zip(symbols_of(own), symbols_of(function), strict=True))
    realize = nests.substitute(own.body, values)
    root = realize.block
    block = s_tir.SBlock(
        root.iter_vars,
        root.reads,
        root.writes,
        f"variant{number}",
        root.body,
        root.init,
        root.alloc_buffers,
        root.match_buffers,
        root.annotations,
    )
    return s_tir.SBlockRealize(realize.iter_values, realize.predicate, block)
