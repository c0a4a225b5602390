"""Checks that a tensor expression reads only its operands, and within their bounds.

Compiled code does not check bounds: a read far out of bounds crashes the process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from needle_runtime.text import counted
from needle_tvm._tvm.names import te, tirx, tvm, tvm_ffi
from needle_tvm.tir.functions import NODES, linear_in, nodes_in, variables_of


def fault(results: Sequence[Any], operands: Sequence[Any]) -> str | None:
    """Describe a wrong read in tensor expressions; return None if none is found.

    A read is reported only if it is certainly wrong: if a linear index is out of bounds in some
    iteration, or any other index in all iterations. Reads under a condition, or at an
    index read from another tensor, may be right. A read under a Select at a clamped index counts as
    wrong if the condition depends on the same variables: the code computes both sides, and TVM may
    use the condition to simplify a side and remove the clamp.
    """
    inputs = {tensor.op: number for number, tensor in enumerate(flat(operands))}
    found, waiting = set(), [tensor.op for tensor in results]
    while waiting:
        operation = waiting.pop()
        if operation in found:
            continue
        found.add(operation)
        waiting += [tensor.op for tensor in operation.input_tensors]
        if isinstance(operation, te.PlaceholderOp) and operation not in inputs:
            return f"reads {operation.name}, which is not one of its inputs"
        if isinstance(operation, te.ComputeOp):
            wrong = _outside(operation, inputs) or _selected(operation, inputs)
            if wrong:
                return wrong
    return None


def flat(operands: Sequence[Any]) -> list[Any]:
    """Return all tensors among the operands, including those in nested tuples."""
    parts = ([each] if isinstance(each, te.Tensor) else flat(each) for each in operands)
    return [tensor for part in parts for tensor in part]


def _outside(operation: Any, inputs: Mapping[Any, int]) -> str | None:
    """Describe a read in an operation that is certainly out of bounds; return None if none is
    found."""
    ranges: dict[Any, tuple[int, int]] = {}
    analyzer = tvm.sym.Analyzer()
    for axis in (*operation.axis, *operation.reduce_axis):
        low, extent = axis.dom.min, axis.dom.extent
        if not isinstance(low, tirx.IntImm) or not isinstance(extent, tirx.IntImm):
            return None
        if int(extent) <= 0:  # nothing is read
            return None
        ranges[axis.var] = int(low), int(low) + int(extent) - 1
        analyzer.bind(axis.var, axis.dom)
    for source, *indices in _unconditional(operation.body):
        for number, (index, extent) in enumerate(zip(indices, source.shape, strict=True)):
            if not isinstance(extent, tirx.IntImm) or _loads(index):
                continue
            low, high, exact = _bounds(index, ranges, analyzer)
            size = int(extent)
            if low >= size or high < 0 or (exact and (low < 0 or high >= size)):
                return (
                    f"reads {_named(source, inputs)} at {low} to {high} along axis {number}, where "
                    f"it has {counted(size, 'element')}"
                )
    return None


def _named(tensor: Any, inputs: Mapping[Any, int]) -> str:
    place = inputs.get(tensor.op)
    return str(tensor.op.name) if place is None else f"input {place}"


def _selected(operation: Any, inputs: Mapping[Any, int]) -> str | None:
    """Describe a read under a Select at an index that TVM may simplify by the Select's condition;
    return None if none is found."""
    for body in operation.body:
        for choice in nodes_in(body, NODES.select):
            asked = _asked(choice.condition)
            for side in (choice.true_value, choice.false_value):
                for source, *indices in (load.args for load in _loads(side)):
                    clamped = next(filter(_is_clamped, indices), None)
                    if clamped is not None and asked & variables_of(clamped):
                        return (
                            f"reads {_named(source, inputs)} at {clamped} under a Select: both "
                            "sides are computed, and the condition may simplify the index; use "
                            "k.tirx.if_then_else"
                        )
    return None


def _asked(condition: Any) -> set[Any]:
    """Return the loop variables on which a condition depends, except through tensors that it
    reads."""

    def unread(call: Any) -> Any:
        return tirx.const(0, str(call.ty)) if call.op == _LOAD else call

    return variables_of(tvm_ffi.structural_map(condition, (NODES.call, unread)))


def _is_clamped(index: Any) -> bool:
    kinds = (tirx.Min, tirx.Max, tirx.FloorMod, tirx.Mod, NODES.select)
    if any(nodes_in(index, kind) for kind in kinds):
        return True
    return any(call.op != _LOAD for call in nodes_in(index, NODES.call))


def _bounds(index: Any, ranges: dict[Any, tuple[int, int]], analyzer: Any) -> tuple[int, int, bool]:
    """Return the bounds of an index, and whether it reaches both."""
    linear = linear_in(index, list(ranges))
    if linear is None or not isinstance(linear[-1], tirx.IntImm):
        bound = analyzer.const_int_bound(analyzer.simplify(index))
        return int(bound.min_value), int(bound.max_value), False
    *factors, added = linear
    ends = [
        sorted((factor * low, factor * high))
        for factor, (low, high) in zip(factors, ranges.values(), strict=True)
    ]
    return (
        int(added) + sum(least for least, _ in ends),
        int(added) + sum(most for _, most in ends),
        True,
    )


_LOAD, _IF = (tvm.ir.Op.get(name) for name in ("te.tensor_load", "prim.if_then_else"))


def _loads(root: Any) -> list[Any]:
    return [call for call in nodes_in(root, NODES.call) if call.op == _LOAD]


def _unconditional(body: Any) -> list[Sequence[Any]]:
    """Return the tensor and the indices of each unconditional load in a body."""
    conditions = [
        *nodes_in(body, NODES.select),
        *nodes_in(body, tirx.And),
        *nodes_in(body, tirx.Or),
        *(call for call in nodes_in(body, NODES.call) if call.op == _IF),
        *(each for each in nodes_in(body, tirx.Reduce) if not _always(each)),
    ]
    under = {load for condition in conditions for load in _loads(condition)}
    return [load.args for load in _loads(body) if load not in under]


def _always(reduction: Any) -> bool:
    """Return whether a reduction includes all of its elements."""
    condition = reduction.condition
    return isinstance(condition, tirx.IntImm) and bool(int(condition))
