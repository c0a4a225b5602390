"""The table of rules: for each class of ops, how ONNX says it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from ...node import Node
from ...op import Op
from ._writer import Writer

# A rule takes the Site of the op and its inputs (a tuple of Values for a tuple-valued one), and
# returns its Value, or a tuple of them.
Rule = Callable[..., Any]
RULES: dict[type[Op], Rule] = {}


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


def find(op: Op) -> Rule | None:
    """The rule of an op: that of the table, or its own method `emit_onnx`."""
    return RULES.get(type(op)) or op.emit_onnx
