"""`while_loop`, a loop that runs while a condition on its state is true."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..autograd.dispatch import apply
from ..autograd.tensor import Tensor
from ..common import tree
from ..errors import ShapeError
from ..op.subgraph import same_spec
from ..ops._predicates import check_predicate
from ..ops.while_loop import WhileLoop
from .tracing import flattened, rebuilt, traced


def while_loop(cond: Callable[[Any], Any], body: Callable[[Any], Any], state: Any) -> Any:
    """Run `while cond(state): state = body(state)` and return the last state, like
    `jax.lax.while_loop`.

    A state is a tensor, or lists, tuples and dicts of tensors; numbers become tensors. `cond`
    returns a bool tensor of one element. `body` returns the next state, which must have the
    structure, shapes and dtypes of the initial `state`.

    Both functions are traced once for all steps, so they must not read values or draw random
    numbers. Outer tensors that they read are inputs of the loop. When compiled, the loop is one
    kernel.

    The loop has no gradient, because its number of steps is unknown: `backward` raises
    UnsupportedError. `needle.scan` runs a given number of steps and has gradients.

    Raises TypeError if the state has no tensors, the condition is not a bool, or the next state has
    another structure or dtype. Raises ShapeError if the condition does not have one element or the
    next state has another shape, and TraceError if a function reads values.

    >>> step = lambda s: (s[0] + 1, s[1] + s[0])
    >>> count, total = ndl.while_loop(lambda s: s[1] < 10, step, (0, 0))
    >>> count.item(), total.item()
    (5, 10)
    """
    before, first = flattened(state, "state")
    if not first:
        raise TypeError("while_loop: state holds no tensor, so the condition would never change")
    after: list[Any] = []

    def call(*given: Tensor) -> Any:
        kept, condition = flattened(cond(rebuilt(state, iter(given))), "condition")
        if kept != tree.LEAF:
            raise TypeError(
                f"while_loop: cond returns {tree.text(kept)}; it must return one bool tensor"
            )
        ((_, keep),) = condition
        check_predicate("while_loop", "the condition", keep.spec)
        found, values = flattened(body(rebuilt(state, iter(given))), "state")
        wrong = tree.difference(before, found, "state")
        if wrong:
            raise TypeError(f"while_loop: the next state differs from the first: {wrong}")
        after.extend(values)
        return keep, [x for _, x in values]

    tensors = [x for _, x in first]
    _, whole, captured = traced(call, [x.spec for x in tensors])
    for (name, x), (_, y) in zip(first, after, strict=True):
        if not same_spec(x.spec, y.spec):
            kind = TypeError if x.dtype != y.dtype else ShapeError
            raise kind(
                f"while_loop: {name} is {x.spec} at first and {y.spec} after a step; a state keeps "
                "its shape and dtype"
            )
    inputs = range(len(whole.inputs))
    test, step = whole.cut(inputs, whole.outputs[:1]), whole.cut(inputs, whole.outputs[1:])
    made = apply(WhileLoop(test, step, len(tensors)), (*tensors, *captured))
    return rebuilt(state, iter(made))
