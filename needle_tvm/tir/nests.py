"""Builds and changes blocks, and the loop nests around them, without a schedule."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from needle_tvm._tvm.names import PrimFunc, s_tir, tirx, tvm, tvm_ffi
from needle_tvm.tir.functions import NODES, nodes_in

SPATIAL, REDUCED = tirx.IterVar.DataPar, tirx.IterVar.CommReduce


def axis(name: str, extent: Any, kind: int, dtype: str = "int64") -> Any:
    """Return an axis of a block over [0, extent). The extent may be a number or symbolic."""
    end = tirx.const(extent, dtype) if isinstance(extent, int) else extent
    domain = tvm.ir.Range(tirx.const(0, dtype), end)
    return tirx.IterVar(domain, tirx.Var(name, dtype), kind)


def substitute(expr: Any, values: Mapping[Any, Any]) -> Any:
    """Substitute `values` for variables in an expression or statement."""
    return tvm_ffi.structural_map(expr, (tvm.ir.Var, lambda var: values.get(var, var)))


def map_nodes(root: Any, kind: Any, change: Callable[[Any], Any]) -> Any:
    """Replace every node of a kind by `change(node)`, innermost first; return the new tree."""
    return tvm_ffi.structural_map(root, (kind, change))


def buffer(name: str, shape: Sequence[int], dtype: str, scope: str = "") -> Any:
    return tirx.decl_buffer([tirx.const(n, "int64") for n in shape], dtype, name, scope=scope)


def nest(
    axes: Sequence[Any],
    name: str,
    store: Any,
    start: Any = None,
    annotations: Mapping[str, Any] | None = None,
    where: Any = None,
) -> Any:
    """Return a block of one store inside one loop per axis; `start` initialises a reduction.

    The store is executed only if `where` holds.
    """
    return _in_loops(axes, block_of(axes, name, store, start, annotations, where))


def block_of(
    axes: Sequence[Any],
    name: str,
    store: Any,
    start: Any = None,
    annotations: Mapping[str, Any] | None = None,
    where: Any = None,
) -> Any:
    """Return the block of `nest` without the loops."""
    body = store if where is None else tirx.IfThenElse(where, store, None)
    block = s_tir.SBlock(list(axes), [], [], name, body, start)
    buffers = [load.source for load in nodes_in(store, tvm.ir.expr.TensorLoad)]
    known = {each: each for each in [*buffers, store.buffer]}
    reads, writes = s_tir.analysis.get_sblock_access_region(block, known)[:2]
    if start is not None:
        result = store.buffer
        reads = [region for region in reads if not region.source.same_as(result)]
    return s_tir.SBlock(
        list(axes), reads, writes, name, body, start, annotations=dict(annotations or {})
    )


def _in_loops(axes: Sequence[Any], block: Any) -> Any:
    loops = [tirx.Var(f"i_{each.var.name}", str(each.var.ty)) for each in axes]
    body = s_tir.SBlockRealize(loops, True, block)
    for variable, each in zip(reversed(loops), reversed(axes), strict=True):
        body = tirx.For(variable, each.dom.min, each.dom.extent, tirx.ForKind.SERIAL, body)
    return body


def with_root(
    function: PrimFunc, nests: Sequence[Any], buffers: Sequence[Any], dropped: Sequence[Any] = ()
) -> PrimFunc:
    """Replace the nests in a function's root block; return the new function. `buffers` are added to
    the block's buffers, and `dropped` are removed."""
    realize = function.body
    root = realize.block
    body = tirx.SeqStmt(list(nests)) if len(nests) > 1 else nests[0]
    kept = [b for b in root.alloc_buffers if not any(b.same_as(each) for each in dropped)]
    allocated = [*kept, *buffers]
    block = s_tir.SBlock(
        root.iter_vars,
        root.reads,
        root.writes,
        root.name_hint,
        body,
        root.init,
        allocated,
        root.match_buffers,
        root.annotations,
    )
    return function.with_body(s_tir.SBlockRealize(realize.iter_values, realize.predicate, block))


def realize(values: Sequence[Any], block: Any, condition: Any = True) -> Any:
    """Return the statement that runs a block at these values of its axes if a condition holds."""
    return s_tir.SBlockRealize(list(values), condition, block)


def renewed(block: Any) -> Any:
    """Return a copy of a block, or of loops, with new variables for all loops, axes, definitions
    and buffers within it."""
    blocks = nodes_in(block, NODES.sblock)
    own = [axis.var for each in blocks for axis in each.iter_vars]
    own += [buffer for each in blocks for buffer in each.alloc_buffers]
    own += [loop.loop_var for loop in nodes_in(block, NODES.loop)]
    for kind in (tirx.Bind, tirx.Let):
        own += [bound.var for bound in nodes_in(block, kind)]
    return substitute(block, {var: tirx.Var(var.name, var.ty) for var in own})


def same(one: Any, other: Any) -> bool:
    """Return whether two expressions are structurally equal and use the same variables."""
    return bool(tvm_ffi.structural_equal(one, other))


def combined(
    lanes: Any, where: Sequence[Any], count: int, combine: Callable[[Any, Any], Any]
) -> Any:
    """Combine the first `count` (a power of 2) elements of the buffer row `lanes[where]` into one.

    The elements are read as one vector, whose halves are combined repeatedly. If a vector were
    stored and then read in parts, LLVM would convert it to integers and back.
    """
    dtype = str(lanes.dtype)
    value = _vector(lanes, where, count)
    bound = []
    while count > 1:
        whole = tirx.Var(f"v{count}", f"{dtype}x{count}")
        count //= 2
        low, high = range(count), range(count, 2 * count)
        halves = [tirx.Shuffle([whole], list(half)) for half in (low, high)]
        names = [
            tirx.Var(f"{end}{count}", str(half.ty)) for end, half in zip("ab", halves, strict=True)
        ]
        bound += [(whole, value), *zip(names, halves, strict=True)]
        value = combine(*names)
    for name, given in reversed(bound):
        value = tirx.Let(name, given, value)
    return value


def across(lanes: Any, where: Sequence[Any], count: int, reduction: str) -> Any:
    """Combine like `combined`, but with an LLVM vector reduction, such as "fmaximum"."""
    bits = str(lanes.dtype).removeprefix("float")
    name = f"llvm.vector.reduce.{reduction}.v{count}f{bits}"
    return tirx.call_llvm_pure_intrin(str(lanes.dtype), name, _vector(lanes, where, count))


def _vector(lanes: Any, where: Sequence[Any], count: int) -> Any:
    first, step = tirx.const(0, "int64"), tirx.const(1, "int64")
    at = [*where, tirx.Ramp(first, step, count)]
    return lanes[tuple(at)]


def loop(
    extent: int, body: Callable[[Any], Any], kind: str = "serial", dtype: str = "int64"
) -> Any:
    """Return a loop around the statement that `body` returns for the loop variable. `kind` is one
    of TVM's `ForKind` in lower case. If the loop would run once, return just the statement."""
    start, count = tirx.const(0, dtype), tirx.const(extent, dtype)
    if extent == 1:
        return body(start)
    variable = tirx.Var("i", dtype)
    return tirx.For(variable, start, count, tirx.ForKind[kind.upper()], body(variable))


def region(buffer: Any, start: Sequence[Any], extents: Sequence[int]) -> Any:
    """Return the region of a buffer from `start`, with `extents` elements along the axes."""
    parts = zip(start, extents, strict=True)
    return buffer[tuple(slice(first, first + count) for first, count in parts)]


def written(
    axes: Sequence[Any],
    name: str,
    body: Any,
    writes: Any,
    kept: Sequence[Any],
    annotations: Mapping[str, Any],
) -> Any:
    """Return a block of any statement inside one loop per axis. It writes one region, and keeps
    temporaries in the buffers `kept`."""
    known = {
        load.source: load.source
        for load in nodes_in(body, tvm.ir.expr.TensorLoad)
        if not any(load.source.same_as(own) for own in kept)
    }
    block = s_tir.SBlock(list(axes), [], [], name, body)
    reads = s_tir.analysis.get_sblock_access_region(block, known)[0]
    notes = dict(annotations)
    block = s_tir.SBlock(list(axes), reads, [writes], name, body, None, list(kept), None, notes)
    return _in_loops(axes, block)


def register_reduction(combine: Callable[[Any, Any], Any], start: Callable[[str], Any]) -> None:
    """Register a reduction with TVM, so that `rfactor` and several threads can split it.

    `combine(a, b)` must be associative, and `start(dtype)` must return its neutral element. TVM may
    call both for any dtype. They must return expressions of exactly the form that blocks use.
    """
    register = tvm.get_global_func("s_tir.schedule.RegisterReducer")
    given = [
        tvm_ffi.convert(lambda a, b: [combine(a[0], b[0])]),
        tvm_ffi.convert(lambda values: [start(str(values[0].ty))]),
    ]
    for function in given:  # otherwise TVM would release them after Python has ended, and crash
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(function))
    register(1, *given)
