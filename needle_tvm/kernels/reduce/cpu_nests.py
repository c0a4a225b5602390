"""Finds and analyses the reductions in a function, and replaces them with rewritten nests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from needle_tvm._tvm.names import PrimFunc, Schedule, tirx
from needle_tvm.kernels.blocks import inline_producers
from needle_tvm.tir import nests
from needle_tvm.tir.functions import NODES, nodes_in, variables_of

Nests = tuple[list[Any], list[Any]]  # the nests that replace a block, and their own buffers
Rewrite = Callable[[Any], Nests | None]

_DTYPES = ("float32", "float64", "int32", "int64")


@dataclass(frozen=True)
class Reduction:
    """result[...] = combine(result[...], term) over the axes `reduced`, starting from `start`."""

    block: Any
    spatial: list[Any]
    reduced: list[Any]
    term: Any
    combine: Callable[[Any, Any], Any]
    across: str | None  # the LLVM intrinsic that reduces a vector; None: combine its halves instead

    @property
    def result(self) -> Any:
        return self.block.body.buffer

    @property
    def start(self) -> Any:
        return self.block.init.value


def rewritten(function: PrimFunc, rewrites: Sequence[Rewrite]) -> PrimFunc:
    """Inline all blocks that can be inlined, and replace each reduction by the nests from the first
    of `rewrites` that returns nests.

    Returns the function itself if no rewrite returns nests.
    """
    if all(block.init is None for block in nodes_in(function, NODES.sblock)):
        return function  # saves the schedule
    sch = Schedule(function)
    inline_producers(sch, keep=set())
    inlined = sch.mod["main"]
    body = inlined.body.block.body
    statements = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    nests_now: list[Any] = []
    buffers: list[Any] = []
    changed = False
    for statement in statements:
        block = _only_block(statement)
        made = None if block is None else _first(rewrites, block)
        changed = changed or made is not None
        nests_now += [statement] if made is None else made[0]
        buffers += [] if made is None else made[1]
    return nests.with_root(inlined, nests_now, buffers) if changed else function


def _first(rewrites: Sequence[Rewrite], block: Any) -> Nests | None:
    return next((made for rewrite in rewrites if (made := rewrite(block)) is not None), None)


def _only_block(statement: Any) -> Any:
    """Return the block in a nest of one loop per axis, in order; None for any other nest."""
    loops = []
    while isinstance(statement, NODES.loop):
        loops.append(statement.loop_var)
        statement = statement.body
    if not isinstance(statement, NODES.realize):
        return None
    values = list(statement.iter_values)
    plain = len(values) == len(loops) and all(
        value.same_as(loop) for value, loop in zip(values, loops, strict=True)
    )
    return statement.block if plain else None


def reduction(block: Any) -> Reduction | None:
    """Return the parts of a block's reduction; None unless it is a sum, maximum or minimum over
    axes of constant extents other than 0."""
    store, axes = block.body, list(block.iter_vars)
    if not isinstance(store, NODES.store) or not isinstance(block.init, NODES.store):
        return None
    if str(store.buffer.dtype) not in _DTYPES:
        return None
    extents = [axis.dom.extent for axis in axes]
    if not all(isinstance(extent, tirx.IntImm) and int(extent) > 0 for extent in extents):
        return None
    spatial = [axis for axis in axes if axis.iter_type == nests.SPATIAL]
    reduced = [axis for axis in axes if axis.iter_type == nests.REDUCED]
    if not reduced or len(spatial) + len(reduced) != len(axes):
        return None
    parts = _parts(store)
    return None if parts is None else Reduction(block, spatial, reduced, *parts)


def _parts(store: Any) -> tuple[Any, Callable[[Any, Any], Any], str | None] | None:
    """Return the term of a sum, maximum or minimum, the function that combines it, and `across`."""
    value = store.value

    def is_result(expr: Any) -> bool:
        return isinstance(expr, NODES.load) and expr.source.same_as(store.buffer)

    if isinstance(value, tirx.Add | tirx.Max | tirx.Min):
        for result, term in ((value.a, value.b), (value.b, value.a)):
            if is_result(result) and not _reads(term, store.buffer):
                return term, type(value), None
        return None
    # A maximum or minimum that propagates NaN: `greater_or_nan` of needle.ops.
    inner: Any = getattr(value, "false_value", None)
    compared: Any = getattr(inner, "condition", None)
    if not isinstance(compared, tirx.GT | tirx.LT) or not is_result(value.true_value):
        return None
    term = inner.false_value
    is_nan = value.condition
    name = getattr(getattr(is_nan, "op", None), "name", "")
    if name != "tirx.isnan" or not is_result(compared.a) or not is_result(inner.true_value):
        return None
    if _reads(term, store.buffer) or not str(store.buffer.dtype).startswith("float"):
        return None

    def combine(a: Any, b: Any) -> Any:
        return tirx.Select(tirx.isnan(a), a, tirx.Select(type(compared)(a, b), a, b))

    # If the vector were halved step by step, each step would repeat its operands in the expression
    # several times, and TVM would take minutes.
    return term, combine, "fmaximum" if isinstance(compared, tirx.GT) else "fminimum"


def _reads(expr: Any, buffer: Any) -> bool:
    return any(load.source.same_as(buffer) for load in nodes_in(expr, NODES.load))


def steps_by_one(index: Any, variable: Any, variables: set[Any]) -> bool:
    """Return whether an index is `variable` plus a value that depends on none of `variables`."""
    if index.same_as(variable):
        return True
    if not isinstance(index, tirx.Add):
        return False
    for one, other in ((index.a, index.b), (index.b, index.a)):
        if not variables_of(other) & variables and steps_by_one(one, variable, variables):
            return True
    return False
