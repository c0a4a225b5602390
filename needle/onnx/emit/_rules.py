"""The table of rules that write ops as ONNX nodes, by class of op."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from ...autograd.node import Node, OpRules
from ...op import Op
from ...op.subgraph import Body
from ...sizes.extents import same
from ._writer import Writer

# A rule takes the Site of the op and its inputs (a tuple of Values for a tuple-valued input). It
# returns the op's Value, or a tuple of Values.
Rule = Callable[..., Any]
RULES: dict[type[OpRules], Rule] = {}


@dataclasses.dataclass(frozen=True)
class Site:
    """The context of a rule: the writer, the traced node, the values of nodes, and the readers of
    each node."""

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
        """The Spec of the result, or a tuple of Specs."""
        return self.node.spec

    def is_read_once(self, node: Node) -> bool:
        """Return whether only this op reads the value of `node`."""
        return len(self.users[node]) == 1


def rule(*ops: type[Op]) -> Callable[[Rule], Rule]:
    """Return a decorator that registers a function as the rule of these `ops`."""

    def enter(function: Rule) -> Rule:
        for op in ops:
            RULES[op] = function
        return function

    return enter


def find(op: OpRules) -> Rule | None:
    """Return the rule for an `op`: the rule in the table, or the op's own method `emit_onnx`."""
    return RULES.get(type(op)) or op.emit_onnx


def written(
    w: Writer, node: Node, values: dict[Node, Any], users: dict[Node, list[Node | None]]
) -> Any:
    """Write a `node` to `w` by the rule of its op. Return its Value, or a tuple of Values. `values`
    and `users` are as in `Site`."""
    op, rule = node.op, None if node.op is None else find(node.op)
    if op is None or rule is None:
        raise RuntimeError(f"no rule for {op}")  # such ops are rejected earlier
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
    """Yield an `op` and the ops in its bodies."""
    yield op
    if op.has_bodies:
        for field in dataclasses.fields(op):  # type: ignore[arg-type]
            body = getattr(op, field.name)
            if isinstance(body, Body):
                for step in body.steps:
                    yield from all_ops(step.op)
