"""Arithmetic of floating-point numbers, as it is written.

Before: an expression of a PrimFunc has what TVM's simplifier would make something else of by the
rules of integers, as inlining brings values together: `(x + y) - y`, which it takes to be `x`
whatever was rounded off, `a - a` and `a == a`, which it takes to be 0 and true also where `a` is no
number, `x < y or y <= x`, or a choice less one of what is chosen from.

After: the operands of these go through `opaque`, which gives what it is given, and into which
the simplifier does not look. Everything else is as before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from needle_tvm._tvm import (
    NODES,
    IRModule,
    PrimFunc,
    Target,
    nests,
    opaque,
    simplified,
    tirx,
)

_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Max, tirx.Min)
_LOGIC = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.And, tirx.Or, tirx.Not)
_KINDS = (*_ARITHMETIC, tirx.Select, *_LOGIC)
_OPERANDS = {tirx.Select: ("condition", "true_value", "false_value"), tirx.Not: ("a",)}
_LEFT_ALONE = (tirx.Add, tirx.Mul, tirx.Div)  # where they are all there is
# As the simplifier writes them, which is the same of NaN as well.
_TURNED = {tirx.GT: tirx.LT, tirx.GE: tirx.LE}


def keep_arithmetic(module: IRModule, target: Target) -> IRModule:
    """Rewrite every PrimFunc."""
    for name, function in list(module.functions_items()):
        if isinstance(function, PrimFunc):
            body = nests.map_nodes(function.body, NODES.store, _kept_in)
            if not body.same_as(function.body):
                module.update_func(name, function.with_body(body))
    return module


def _kept_in(store: Any) -> Any:
    if not any(map(_is_changed, _trees(store.value))):
        return store
    value = store.value
    for kind in _KINDS:
        value = nests.map_nodes(value, kind, _kept)
    return tirx.BufferStore(store.buffer, value, store.indices)


def _kept(node: Any) -> Any:
    if not _is_changed(node):
        return node
    return type(node)(*[opaque(each, number) for number, each in enumerate(_operands(node))])


def _trees(expr: Any) -> Iterator[Any]:
    """The largest trees of arithmetic in an expression."""
    if isinstance(expr, _KINDS):
        yield expr
        below = _Abstract(expr).leaves
    else:
        below = getattr(expr, "args", [expr.value] if isinstance(expr, NODES.cast) else [])
    for each in below:
        yield from _trees(each)


def _is_changed(node: Any) -> bool:
    """Whether the simplifier makes something else of a tree, or of a node in it."""
    found = _Abstract(node)
    is_at_risk = found.has_floats and not found.kinds <= {*_LEFT_ALONE}
    return is_at_risk and not nests.same(simplified(found.tree), found.tree)


class _Abstract:
    """A tree of arithmetic with variables in place of its `leaves`, one for those that are the
    same: what the simplifier knows of a tensor's elements."""

    def __init__(self, root: Any) -> None:
        self.leaves: list[Any] = []
        self.kinds: set[type] = set()
        self.has_floats = False
        self._variables: list[Any] = []
        self.tree = self._of(root)

    def _of(self, node: Any) -> Any:
        if isinstance(node, _KINDS):
            kind, operands = type(node), [self._of(each) for each in _operands(node)]
            self.kinds.add(kind)
            return _TURNED[kind](*operands[::-1]) if kind in _TURNED else kind(*operands)
        if "float" in str(node.ty):
            self.has_floats = True
        if isinstance(node, (tirx.IntImm, tirx.FloatImm)):
            return node
        for leaf, variable in zip(self.leaves, self._variables, strict=True):
            if _may_be_same(leaf, node):
                return variable
        self.leaves.append(node)
        self._variables.append(tirx.Var(f"x{len(self.leaves)}", str(node.ty)))
        return self._variables[-1]


def _may_be_same(one: Any, other: Any) -> bool:
    """Whether two leaves are the same, or may turn out to be: indices that look different now may
    be simplified to the same later."""
    if type(one) is not type(other):
        return False
    if isinstance(one, NODES.load):
        if not one.source.same_as(other.source):
            return False
        distances = [simplified(i - j) for i, j in zip(one.indices, other.indices, strict=True)]
        return not any(isinstance(each, tirx.IntImm) and each.value != 0 for each in distances)
    return nests.same(_without_indices(one), _without_indices(other))


def _without_indices(leaf: Any) -> Any:
    def start(load: Any) -> Any:
        return load.source[[0] * len(load.indices)]

    return nests.map_nodes(leaf, NODES.load, start)


def _operands(node: Any) -> list[Any]:
    return [getattr(node, name) for name in _OPERANDS.get(type(node), ("a", "b"))]
