"""Combines several schedules of a function into one whose code picks among them by size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from needle_tvm._tvm.names import PrimFunc, s_tir, tirx
from needle_tvm.tir import nests
from needle_tvm.tir.extents import symbols_of


def either(function: PrimFunc, variants: Sequence[tuple[Any, PrimFunc]]) -> PrimFunc:
    """Return a function that runs the first of `variants` whose condition holds, or the last one.

    Variants are schedules of `function`, but have parameters and variables of their own. A
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
    """Return whether tiles of `rows` rows are best for `m` rows, given that no smaller tiles
    are best. They are best if one tile holds all rows. They are also best if `m` is more than
    `largest` and they cover `m` rows with fewer spare rows than any other tile of `among` would; an
    empty `among` excludes this case.
    """
    fits = m <= tirx.const(rows, "int64")
    if not among:
        return fits
    best = m > tirx.const(largest, "int64")
    for other in among:
        if other != rows:
            best = tirx.all(best, _covered(m, rows) < _covered(m, other))
    return tirx.any(fits, best)


def _covered(m: Any, rows: int) -> Any:
    """Return the number of rows that the tiles for `m` rows have together."""
    return tirx.floordiv(m + (rows - 1), tirx.const(rows, "int64")) * rows


def _renamed(function: PrimFunc, scheduled: PrimFunc, number: int) -> Any:
    """Return the body of a variant, in terms of the parameters and symbolic extents of `function`.
    All other variables and the name of the root block are unique to the variant."""
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
