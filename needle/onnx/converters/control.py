"""If: the branch of a known condition, or both and a choice. Branches see outer values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ... import ops
from ..._state import state
from ...conversion.values import Carried, Items, Missing, Value, known_number, tensor
from ...errors import ModelError
from ...extents import same
from ...tensor import Tensor
from ..execute import Scope
from ..graph import Graph, Node
from ..registry import converter


@converter("If", since=1, scoped=True, known=(0,))
def if_(node: Node, scope: Scope, condition: Value) -> tuple[Value, ...]:
    branches = [node.graph("then_branch"), node.graph("else_branch")]
    if isinstance(condition, Tensor) and state.trace is not None:
        return _chosen(node, condition, *(_whole(node, scope, branch) for branch in branches))
    return scope.run(branches[0 if known_number(node, condition, "the condition") else 1])


_UNKNOWN = "the condition depends on values that only a call knows"
_ADVICE = "if it comes from an input of the model, give that a value with fixed={...}"


def _whole(node: Node, scope: Scope, branch: Graph) -> tuple[Value, ...]:
    """The outputs of a branch that is not necessarily taken."""
    try:
        return scope.run(branch)
    except ModelError as error:
        raise node.unsupported(
            f"{_UNKNOWN}, and branch {branch.name!r} does not fit these inputs ({error}); {_ADVICE}"
        ) from error


def _chosen(
    node: Node, condition: Tensor, taken: Sequence[Any], other: Sequence[Any]
) -> tuple[Any, ...]:
    """The outputs of one branch, chosen by a condition that only a call knows: both are computed,
    which needs outputs alike."""
    if condition.size != 1:
        raise node.invalid(f"the condition has the shape {condition.shape}, not one element")
    scalar = ops.reshape(condition, ())
    chosen: list[Any] = []
    for i, (a, b) in enumerate(zip(taken, other, strict=True)):
        if _lengths(a) != _lengths(b):
            raise node.unsupported(
                f"{_UNKNOWN}, and output {i} is {_described(a)} in one branch and {_described(b)} "
                f"in the other; {_ADVICE}"
            )
        if isinstance(a, Items) and isinstance(b, Items):
            chosen.append(Items(_chosen(node, condition, a.values, b.values)))
            continue
        if isinstance(a, Missing):
            chosen.append(a)
            continue
        first, second = tensor(a), tensor(b)
        if not same(first.shape, second.shape) or first.dtype != second.dtype:
            raise node.unsupported(
                f"{_UNKNOWN}, and output {i} is {first.dtype} {first.shape} in one branch and "
                f"{second.dtype} {second.shape} in the other; {_ADVICE}"
            )
        chosen.append(ops.where(scalar, first, second))
    return tuple(chosen)


def _lengths(value: Carried) -> Any:
    """How many values a sequence has, none for a missing optional, and -1 for a tensor."""
    if isinstance(value, Items):
        return len(value.values)
    return None if isinstance(value, Missing) else -1


def _described(value: Carried) -> str:
    length = _lengths(value)
    if length is None:
        return "an optional without a value"
    return "a tensor" if length < 0 else f"a sequence of {length}"
