"""Differences of equals, which are 0 of finite numbers alone.

Before: a PrimFunc has `a - a` of one floating-point expression, as inlining makes it of two values
that are computed alike.

After: `select(isfinite(a), 0, nan)`. TVM would fold the difference to 0, also where `a` is infinite
or no number.
"""

from __future__ import annotations

from typing import Any

from needle_tvm._tvm import IRModule, PrimFunc, Target, nests, nodes_in, tirx


def keep_differences(module: IRModule, target: Target) -> IRModule:
    """Rewrite every PrimFunc."""
    for name, function in list(module.functions_items()):
        if isinstance(function, PrimFunc) and any(map(_vanishes, nodes_in(function, tirx.Sub))):
            body = nests.map_nodes(function.body, tirx.Sub, _kept)
            module.update_func(name, function.with_body(body))
    return module


def _vanishes(difference: Any) -> bool:
    return "float" in str(difference.ty) and nests.same(difference.a, difference.b)


def _kept(difference: Any) -> Any:
    if not _vanishes(difference):
        return difference
    dtype = str(difference.ty)
    zero, nan = (tirx.const(number, dtype) for number in (0.0, float("nan")))
    return tirx.Select(tirx.isfinite(difference.a), zero, nan)
