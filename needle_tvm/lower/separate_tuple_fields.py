"""Keeps FuseOps from taking fields of tuples into its groups.

If a group reads fields of a tuple from outside, FuseOps replaces the group's tuple parameter with
the fields. It does so at an index that it noted before it replaced other parameters, in the order
of addresses in memory (`FunctionCreator::CreateFunction`, src/relax/transform/fuse_ops.cc). A group
that reads two tuples may therefore get its arguments in the wrong places.

Before: a dataflow block may bind a field of a tuple.

After: each field is bound by a match_cast to its own type, which FuseOps puts into no group. When
bindings are canonicalised later, it becomes a field again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from needle_tvm._tvm.names import IRModule, Target, relax
from needle_tvm.graph.rewrite import rebind


def separate_tuple_fields(module: IRModule, target: Target) -> IRModule:
    """Bind the fields of tuples in every Relax function so that no group takes them in."""
    return rebind(module, _apart)


def _apart(function: relax.Function, bindings: Sequence[Any]) -> list[Any]:
    return [
        relax.MatchCast(each.var, each.value, each.var.ty)
        if isinstance(each, relax.VarBinding) and isinstance(each.value, relax.TupleGetItem)
        else each
        for each in bindings
    ]
