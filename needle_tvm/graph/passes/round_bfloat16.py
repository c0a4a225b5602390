"""Rounds bfloat16 values that pass between two operations of one kernel.

Before: an expression of a scheduled PrimFunc is `Cast("bfloat16", x)`.

After: x is rounded to bfloat16's precision, in float32, before the cast. TVM computes bfloat16 in
float32, even in buffers that a function allocates, so it drops every cast that does not write a
parameter. A cast from float32 that writes a parameter is left alone. A wider x is rounded to odd on
the way to float32, so that the result is rounded only once.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from needle_tvm._tvm.names import IRModule, PrimFunc, Target, tirx
from needle_tvm.tir import nests, vector_math
from needle_tvm.tir.functions import NODES, nodes_in


def round_bfloat16(module: IRModule, target: Target) -> IRModule:
    """Add the rounding to every PrimFunc (see the module docstring)."""
    for name, function in list(module.functions_items()):
        if isinstance(function, PrimFunc):
            body = _rounding(function.body, set(function.params))
            if body is not None:
                module.update_func(name, function.with_body(body))
    return module


def _rounding(body: Any, parameters: Collection[Any]) -> Any:
    """Return the body with rounding casts; None if it has no cast that rounds."""
    if not any(map(_rounds, nodes_in(body, NODES.cast))):
        return None
    return nests.map_nodes(body, NODES.store, lambda store: _store(store, parameters))


def _rounds(cast: Any) -> bool:
    return str(cast.ty) == "bfloat16" and str(cast.value.ty) not in ("bfloat16", "bool")


def _store(store: Any, parameters: Collection[Any]) -> Any:
    value = store.value
    if (
        store.buffer in parameters
        and isinstance(value, NODES.cast)
        and _rounds(value)
        and str(value.value.ty) == "float32"
    ):
        value = tirx.Cast("bfloat16", _expression(value.value))
    else:
        value = _expression(value)
    return tirx.BufferStore(store.buffer, value, list(store.indices))


def _expression(expr: Any) -> Any:
    return nests.map_nodes(expr, NODES.cast, lambda cast: _rounded(cast) if _rounds(cast) else cast)


def _rounded(cast: Any) -> Any:
    x = cast.value
    if str(x.ty) != "float32":
        wide = x if str(x.ty) == "float64" else tirx.Cast("float64", x)
        x = tirx.call_intrin("float32", vector_math.ROUND_TO_ODD, wide)
    return tirx.Cast("bfloat16", tirx.call_intrin("float32", vector_math.ROUND_TO_BFLOAT16, x))
