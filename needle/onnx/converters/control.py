"""The converter of If. A known condition selects a branch; otherwise If becomes a `needle.cond`.
Branches can use values of the outer graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ... import ops
from ...autograd.tensor import Tensor
from ...common.state import state
from ...conversion.values import Carried, Items, Missing, Value, known_number, tensor
from ...errors import ModelError
from ...loops import cond
from ...sizes.extents import same
from ..execute import Scope
from ..graph import Graph, Node
from ..registry import converter

_UNKNOWN = "the condition depends on values that only a call knows"
_ADVICE = "if it comes from an input of the model, give the input a value with fixed={...}"


@converter("If", since=1, scoped=True, known=(0,))
def if_(node: Node, scope: Scope, condition: Value) -> tuple[Carried, ...]:
    branches = node.graph("then_branch"), node.graph("else_branch")
    if isinstance(condition, Tensor) and state.trace is not None:
        return _chosen(node, scope, condition, branches)
    return scope.run(branches[0 if known_number(node, condition, "the condition") else 1])


def _chosen(
    node: Node, scope: Scope, condition: Tensor, branches: Sequence[Graph]
) -> tuple[Carried, ...]:
    """Return the outputs of an If whose branch is chosen at each call. The outputs of both branches
    must be of the same kinds."""
    if condition.size != 1:
        raise node.invalid(f"the condition has the shape {condition.shape}, not one element")
    sides: list[tuple[Carried, ...]] = []

    def side(branch: Graph) -> Callable[[], list[list[Tensor]]]:
        def run() -> list[list[Tensor]]:
            try:
                sides.append(scope.run(branch))
            except ModelError as error:
                raise node.unsupported(
                    f"{_UNKNOWN}, and branch {branch.name!r} does not fit these inputs ({error}); "
                    + _ADVICE
                ) from error
            _check_alike(node, *sides)
            return [[tensor(x) for x in _values(output)] for output in sides[-1]]

        return run

    found = cond(ops.reshape(condition, ()), *map(side, branches))
    return tuple([_like(x, values) for x, values in zip(sides[0], found, strict=True)])


def _check_alike(
    node: Node, taken: Sequence[Carried], other: Sequence[Carried] | None = None
) -> None:
    """Raise UnsupportedError for branches whose outputs differ in length, shape or dtype."""
    for i, (a, b) in enumerate(zip(taken, taken if other is None else other, strict=True)):
        wrong = None
        if _kind(a) != _kind(b):
            wrong = _kind(a), _kind(b)
        for x, y in zip(_values(a), _values(b), strict=False):
            x, y = tensor(x), tensor(y)
            if not same(x.shape, y.shape) or x.dtype != y.dtype:
                wrong = f"{x.dtype} {x.shape}", f"{y.dtype} {y.shape}"
        if wrong is not None:
            raise node.unsupported(
                f"{_UNKNOWN}, and output {i} is {wrong[0]} in one branch and {wrong[1]} in the "
                f"other; {_ADVICE}"
            )


def _values(value: Carried) -> Sequence[Value]:
    if isinstance(value, Items):
        return value.values
    return () if isinstance(value, Missing) else (value,)


def _kind(value: Carried) -> str:
    if isinstance(value, Items):
        return f"a sequence of {len(value.values)}"
    return "an optional without a value" if isinstance(value, Missing) else "a tensor"


def _like(value: Carried, found: Sequence[Tensor]) -> Carried:
    """Return the results `found` as a value of the same kind as `value`."""
    if isinstance(value, Items):
        return Items(tuple(found))
    return value if isinstance(value, Missing) else found[0]
