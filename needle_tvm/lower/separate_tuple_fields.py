"""Keeps FuseOps from putting reads of tuple fields into its groups.

If a group reads fields of a tuple from outside, FuseOps replaces the group's tuple parameter with
the fields. It uses the parameter's index from before any replacement, and it replaces tuples in the
order of their memory addresses (`FunctionCreator::CreateFunction`,
src/relax/transform/fuse_ops.cc). So a group that reads two tuples may get its arguments in the
wrong order.

Before: a dataflow block may bind a field of a tuple.

After: each field is bound by a match_cast to its own type, which FuseOps never puts into a group.
When bindings are canonicalised later, it becomes a plain field again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from needle_tvm._tvm.names import IRModule, Target, relax
from needle_tvm.graph.rewrite import rebind


def separate_tuple_fields(module: IRModule, target: Target) -> IRModule:
    """Bind tuple fields in every Relax function so that FuseOps puts them into no group."""
    return rebind(module, _apart)


def _apart(function: relax.Function, bindings: Sequence[Any]) -> list[Any]:
    return [
        relax.MatchCast(each.var, each.value, each.var.ty)
        if isinstance(each, relax.VarBinding) and isinstance(each.value, relax.TupleGetItem)
        else each
        for each in bindings
    ]
