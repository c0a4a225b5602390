"""Keeps floating-point arithmetic as written.

Before: an expression of a PrimFunc that TVM's simplifier would change by rules for integers. Such
expressions arise when values are inlined. The simplifier turns `(x + y) - y` into `x`,
although the sum was rounded, and `a - a` and `a == a` into 0 and true, even if `a` is NaN. It also
changes `x < y or y <= x`, and a `Select` minus one of its alternatives.

After: the operands of such expressions go through `opaque`. It returns its argument, and the
simplifier does not look into it. All other expressions are as before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from needle_tvm._tvm.names import IRModule, PrimFunc, Target, tirx
from needle_tvm.tir import nests
from needle_tvm.tir.functions import NODES, simplified
from needle_tvm.tir.opaque import opaque

_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Max, tirx.Min)
_LOGIC = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.And, tirx.Or, tirx.Not)
_KINDS = (*_ARITHMETIC, tirx.Select, *_LOGIC)
_OPERANDS = {tirx.Select: ("condition", "true_value", "false_value"), tirx.Not: ("a",)}
_LEFT_ALONE = (tirx.Add, tirx.Mul, tirx.Div)  # if a tree has no other kinds of nodes
# The simplifier writes comparisons in this direction, which is equivalent for NaN as well.
_TURNED = {tirx.GT: tirx.LT, tirx.GE: tirx.LE}


def keep_arithmetic(module: IRModule, target: Target) -> IRModule:
    """Rewrite every PrimFunc as the module docstring says."""
    for name, function in list(module.functions_items()):
        if isinstance(function, PrimFunc):
            body = nests.map_nodes(function.body, NODES.store, _kept_in)
            if not body.same_as(function.body):
                module.update_func(name, function.with_body(body))
    return module


def _kept_in(store: Any) -> Any:
    if not any(tree.is_changed for tree in _trees(store.value)):
        return store
    value = store.value
    for kind in _KINDS:
        value = nests.map_nodes(value, kind, _kept)
    return tirx.BufferStore(store.buffer, value, store.indices)


def _kept(node: Any) -> Any:
    if not _Tree(node).is_changed:
        return node
    return type(node)(*[opaque(each, number) for number, each in enumerate(_operands(node))])


def _trees(expr: Any) -> Iterator[_Tree]:
    """Yield the largest trees of arithmetic in an expression."""
    if isinstance(expr, _KINDS):
        tree = _Tree(expr)
        yield tree
        below = tree.leaves
    else:
        below = getattr(expr, "args", [expr.value] if isinstance(expr, NODES.cast) else [])
    for each in below:
        yield from _trees(each)


class _Tree:
    """A tree of arithmetic down to its `leaves`. `is_changed` says whether the simplifier would
    change the tree.

    For the simplifier, leaves are variables; equal leaves are the same variable.
    """

    def __init__(self, root: Any) -> None:
        self.leaves: list[Any] = []
        self._variables: list[tuple[Any, Any]] = []
        self._kinds: set[type] = set()
        self._has_floats = False
        self._root = self._abstract(root)

    @property
    def is_changed(self) -> bool:
        if not self._has_floats or self._kinds <= {*_LEFT_ALONE}:
            return False
        return not nests.same(simplified(self._root), self._root)

    def _abstract(self, node: Any) -> Any:
        if isinstance(node, _KINDS):
            kind, operands = type(node), [self._abstract(each) for each in _operands(node)]
            self._kinds.add(kind)
            return _TURNED[kind](*operands[::-1]) if kind in _TURNED else kind(*operands)
        self._has_floats |= "float" in str(node.ty)
        if isinstance(node, (tirx.IntImm, tirx.FloatImm)):
            return node
        self.leaves.append(node)
        for leaf, variable in self._variables:
            if _may_be_same(leaf, node):
                return variable
        variable = tirx.Var(f"x{len(self._variables)}", str(node.ty))
        self._variables.append((node, variable))
        return variable


def _may_be_same(one: Any, other: Any) -> bool:
    """Return whether two leaves are equal or may become so: indices that differ now may later be
    simplified to the same index."""
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
