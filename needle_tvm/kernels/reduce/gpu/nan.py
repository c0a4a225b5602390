"""Handles NaN on a GPU: an isnan test, and maxima and minima that propagate NaN.

- TVM emits isnan of a vector as one comparison of vectors, which CUDA does not have. TVM's
  simplifier ignores NaN: it turns x != x into false, and not (x <= infinity) into x > infinity. So
  this module tests the bits.
- On a CPU, max(a, b) is computed as `a if a > b else b`, and code relies on this order. CUDA's
  max function returns the operand that is not NaN. So this module writes the comparison.
- TVM distributes a reduction over threads only if it is registered, as sums, products, maxima and
  minima are. This module registers the maxima and minima that propagate NaN.
"""

from __future__ import annotations

from typing import Any

from needle_tvm._tvm.names import PrimFunc, tirx
from needle_tvm.tir import nests
from needle_tvm.tir.functions import NODES

# For each dtype, its width and the bits of infinity. Without the sign bit, all NaNs are greater.
_INFINITY = {
    "float16": (16, 0x7C00),
    "bfloat16": (16, 0x7F80),
    "float32": (32, 0x7F800000),
    "float64": (64, 0x7FF0000000000000),
}


def keeping_nan(function: PrimFunc) -> PrimFunc:
    """Make a function treat NaN on a GPU as it does on a CPU.

    Reductions by TVM's own max and min stay as they are. Reductions that must propagate NaN are
    written with isnan, and can be distributed over threads.
    """

    def by_bits(call: Any) -> Any:
        return _is_nan(call.args[0]) if getattr(call.op, "name", "") == "tirx.isnan" else call

    body = nests.map_nodes(function.body, NODES.call, by_bits)
    return function.with_body(nests.map_nodes(body, NODES.store, _compared))


def _compared(store: Any) -> Any:
    """Replace the maxima and minima in a store by comparisons, except the reduction itself."""

    def compared(node: Any) -> Any:
        loads = [each for each in (node.a, node.b) if isinstance(each, NODES.load)]
        if str(node.ty) not in _INFINITY or any(x.source.same_as(store.buffer) for x in loads):
            return node
        order = tirx.GT if isinstance(node, tirx.Max) else tirx.LT
        return tirx.Select(order(node.a, node.b), node.a, node.b)

    value = store.value
    for kind in (tirx.Max, tirx.Min):
        value = nests.map_nodes(value, kind, compared)
    return tirx.BufferStore(store.buffer, value, store.indices)


def _is_nan(value: Any) -> Any:
    width, infinity = _INFINITY[str(value.ty)]
    unsigned = f"uint{width}"
    magnitude = tirx.reinterpret(unsigned, value) & tirx.const(2 ** (width - 1) - 1, unsigned)
    return magnitude > tirx.const(infinity, unsigned)


def _tell_of_reductions() -> None:
    """Register `greater_or_nan` and `less_or_nan` of needle.ops as TVM reductions, in the form that
    `keeping_nan` gives them."""

    def greater(a: Any, b: Any) -> Any:
        if str(a.ty) not in _INFINITY:
            return tirx.Max(a, b)
        return tirx.Select(_is_nan(a), a, tirx.Select(a > b, a, b))

    def less(a: Any, b: Any) -> Any:
        if str(a.ty) not in _INFINITY:
            return tirx.Min(a, b)
        return tirx.Select(_is_nan(a), a, tirx.Select(a < b, a, b))

    def least(dtype: str) -> Any:
        return tirx.const(float("-inf"), dtype) if dtype in _INFINITY else tirx.min_value(dtype)

    def most(dtype: str) -> Any:
        return tirx.const(float("inf"), dtype) if dtype in _INFINITY else tirx.max_value(dtype)

    nests.register_reduction(greater, least)
    nests.register_reduction(less, most)


_tell_of_reductions()  # at import, so that every later build can use them
