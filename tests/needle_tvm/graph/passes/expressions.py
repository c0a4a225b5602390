"""PrimFuncs that store one expression, for passes that look into expressions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from needle_tvm._tvm.names import IRModule, te, tirx
from needle_tvm.tir import nests
from needle_tvm.tir.functions import NODES


def storing(
    value: Callable[[Callable[..., Any], Callable[..., Any], Any], Any],
    dtype: str = "float32",
    *,
    result: str | None = None,
) -> IRModule:
    """A module whose PrimFunc stores `value(x, y, i)` at i = 0 to 7; x(i) and y(i) are elements of
    its arguments, of `dtype`. Written into the finished loop: TVM simplifies while it makes one."""
    x, y = (te.placeholder((16,), dtype, name) for name in "xy")
    result = result or dtype
    both = te.compute((8,), lambda i: tirx.Cast(result, x[i] + y[i]), "z")
    function = te.create_prim_func([x, y, both]).with_attr("global_symbol", "main")
    first, second = function.params[:2]

    def stored(store: Any) -> Any:
        (i,) = store.indices
        given = value(lambda j: first[[j]], lambda j: second[[j]], i)
        return tirx.BufferStore(store.buffer, given, store.indices)

    body = nests.map_nodes(function.body, NODES.store, stored)
    return IRModule({"main": function.with_body(body)})
