"""Several schedules of a function in one, of which its code picks one by size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from needle_tvm._tvm.names import PrimFunc, s_tir, tirx
from needle_tvm.tir import nests
from needle_tvm.tir.extents import symbols_of


def either(function: PrimFunc, variants: Sequence[tuple[Any, PrimFunc]]) -> PrimFunc:
    """The function that runs the first of `variants` whose condition holds, or the last one.

    Variants are schedules of `function` and share its parameters. A condition is an expression of
    the variables in the shapes of these.
    """
    *first, (_, last) = variants
    body = _renamed(last, len(first))
    for number, (condition, scheduled) in reversed(list(enumerate(first))):
        body = tirx.IfThenElse(condition, _renamed(scheduled, number), body)
    if not first:
        return last
    root = s_tir.SBlockRealize([], True, s_tir.SBlock([], [], [], "root", body))
    return function.with_body(root)


def _own(scheduled: PrimFunc) -> Any:
    """A function's body with variables of its own, besides those of the parameters."""
    renewed = s_tir.renew_defs(scheduled)
    back = dict(zip(renewed.params, scheduled.params, strict=True))
    back |= dict(zip(symbols_of(renewed), symbols_of(scheduled), strict=True))
    return nests.substitute(renewed.body, back)


def _renamed(scheduled: PrimFunc, number: int) -> Any:
    """A variant's body, with a name of its own for its root block."""
    realize = _own(scheduled)
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
