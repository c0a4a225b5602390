"""The table of rules: for each class of ops, how ONNX says it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from ...autograd.node import Node, OpRules
from ...op import Op
from ...op.subgraph import Body
from ...sizes.extents import same
from ._writer import Writer

# A rule takes the Site of the op and its inputs (a tuple of Values for a tuple-valued one), and
# returns its Value, or a tuple of them.
Rule = Callable[..., Any]
RULES: dict[type[OpRules], Rule] = {}


@dataclasses.dataclass(frozen=True)
class Site:
    """Where a rule is applied: what it writes to, the traced node, and who else reads what."""

    w: Writer
    node: Node
    values: dict[Node, Any]
    users: dict[Node, list[Node | None]]  # None for an output of the graph

    @property
    def op(self) -> Any:
        """The op."""
        return self.node.op

    @property
    def out(self) -> Any:
        """The Spec of the result, or a tuple of them."""
        return self.node.spec

    def is_read_once(self, node: Node) -> bool:
        """Whether nothing but this op reads the value of `node`."""
        return len(self.users[node]) == 1


def rule(*ops: type[Op]) -> Callable[[Rule], Rule]:
    """Decorate the rule of some ops."""

    def enter(function: Rule) -> Rule:
        for op in ops:
            RULES[op] = function
        return function

    return enter


def find(op: OpRules) -> Rule | None:
    """The rule of an op: that of the table, or its own method `emit_onnx`."""
    return RULES.get(type(op)) or op.emit_onnx


def written(
    w: Writer, node: Node, values: dict[Node, Any], users: dict[Node, list[Node | None]]
) -> Any:
    """The Value of a node, or a tuple of them, by the rule of its op."""
    op, rule = node.op, None if node.op is None else find(node.op)
    if op is None or rule is None:
        raise RuntimeError(f"no rule for {op}")  # such ops were refused before
    w.begin(node.scope or "", op.name)
    if all(any(same(n, 0) for n in spec.shape) for spec in node.specs):  # no elements
        empty = [w.full(0, spec.dtype, spec.shape) for spec in node.specs]
        return tuple(empty) if type(node.spec) is tuple else empty[0]
    made = rule(Site(w, node, values, users), *[values[source] for source in node.input_nodes])
    pairs = zip(made if isinstance(made, tuple) else (made,), node.specs, strict=True)
    for value, spec in pairs:
        if value.shape is None:
            value.shape = spec.shape
    return made


def all_ops(op: OpRules) -> Iterator[OpRules]:
    """An op, and those in its bodies."""
    yield op
    if op.has_bodies:
        for field in dataclasses.fields(op):  # type: ignore[arg-type]
            body = getattr(op, field.name)
            if isinstance(body, Body):
                for step in body.steps:
                    yield from all_ops(step.op)
