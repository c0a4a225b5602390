"""Rewrites divisions of indices that TVM does not simplify correctly.

TVM 0.27 flattens buffers with `IterMapSimplify`, which turns floordiv(7 - i, 2) into
floordiv(i, -2) + 3. This is off by one for odd i; floormod has the same bug. Such indices arise
when a buffer is read backwards and then folded. With y = x + (d - 1 - c),

    floordiv(c - x, d) = -floordiv(y, d),    floormod(c - x, d) = d - 1 - floormod(y, d).

If a divisor is an expression of symbolic sizes, such as the inner extent of a fused loop, and
another division follows, `IterMapSimplify` stops with an internal error: it does not see that
(3 * n - 2) * 3 is divisible by 3 * n - 2. This module hides such divisors from TVM, and also their
dividends: otherwise the size that `CompactBufferAllocation` gives a buffer outside of a loop could
depend on an index in the loop.
"""

from __future__ import annotations

from typing import Any

from needle_tvm._tvm.names import IRModule, PrimFunc, tirx, tvm_ffi
from needle_tvm.tir.opaque import opaque


def plain_divisions(module: IRModule) -> IRModule:
    """Rewrite divisions in a module's PrimFuncs if the dividend falls as its variables rise, or if
    the divisor is an expression."""
    for name, function in list(module.functions_items()):
        if isinstance(function, PrimFunc):
            body = function.body
            for kind in (tirx.FloorDiv, tirx.FloorMod):
                body = tvm_ffi.structural_map(body, (kind, _plain))
            if not body.same_as(function.body):
                module.update_func(name, function.with_body(body))
    return module


def _plain(division: Any) -> Any:
    """Return the rewritten division, or the division itself if it has another form."""
    divisor = division.b
    if isinstance(divisor, tirx.Add | tirx.Sub | tirx.Mul | tirx.FloorDiv):
        return type(division)(opaque(division.a), opaque(divisor, 1))
    if not isinstance(divisor, tirx.IntImm) or int(divisor) <= 0:
        return division
    terms: list[tuple[int, Any]] = []
    constant = _collect(division.a, 1, terms)
    if not terms or any(factor > 0 for factor, _ in terms):
        return division
    dtype, d = str(divisor.ty), int(divisor)
    value: Any = tirx.const(d - 1 - constant, dtype)
    for factor, term in terms:
        value = value + (term if factor == -1 else term * tirx.const(-factor, dtype))
    if isinstance(division, tirx.FloorDiv):
        return tirx.const(0, dtype) - tirx.FloorDiv(value, divisor)
    return tirx.const(d - 1, dtype) - tirx.FloorMod(value, divisor)


def _collect(expr: Any, factor: int, terms: list[tuple[int, Any]]) -> int:
    """Append (factor, term) for each non-constant term of a sum; return the sum of constants."""
    if isinstance(expr, tirx.IntImm):
        return factor * int(expr)
    if isinstance(expr, tirx.Add):
        return _collect(expr.a, factor, terms) + _collect(expr.b, factor, terms)
    if isinstance(expr, tirx.Sub):
        return _collect(expr.a, factor, terms) + _collect(expr.b, -factor, terms)
    if isinstance(expr, tirx.Mul) and isinstance(expr.b, tirx.IntImm) and int(expr.b):
        return _collect(expr.a, factor * int(expr.b), terms)
    terms.append((factor, expr))
    return 0
