"""`cond`, which calls one of two functions depending on a tensor's value, and its gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..autograd.dispatch import apply
from ..autograd.tensor import Tensor
from ..backend_ndarray.dtypes import is_floating
from ..common import tree
from ..common.state import call_recording
from ..errors import ShapeError
from ..op.signatures import Gradients
from ..op.subgraph import Body, same_spec
from ..ops._predicates import check_predicate
from ..ops.cond import Cond
from ..trace.graph import is_tensor
from ..trace.tracer import as_tensor
from .gradient import _add, _pull_back
from .tracing import flattened, rebuilt, traced


def cond(
    predicate: Any,
    true_function: Callable[..., Any],
    false_function: Callable[..., Any],
    *operands: Any,
) -> Any:
    """Return `true_function(*operands)` if `predicate` is true, else `false_function(*operands)`,
    like `jax.lax.cond`.

    `predicate` is a bool or a bool tensor of one element. Operands and results are tensors, or
    lists, tuples and dicts of tensors; numbers become tensors. Both functions are traced, so they
    must not read values or draw random numbers, and their results must have the same structure,
    shapes and dtypes. Outer tensors that the functions read are inputs, like the operands. Only the
    chosen branch and its gradient run; gradients of any order are supported. If `predicate` is a
    Python bool, only the chosen function is called.

    Raises TypeError if the predicate is not a bool or the results differ in structure or dtype,
    ShapeError if the predicate does not have one element or the results differ in shape, and
    TraceError if a function reads values.

    >>> x = ndl.Tensor([1.0, 4.0])
    >>> ndl.cond(x.sum() > 4, lambda: x.sqrt(), lambda: -x).numpy().tolist()
    [1.0, 2.0]
    """
    _, leaves = flattened(operands, "operand")
    tensors = [x for _, x in leaves]
    if isinstance(predicate, (bool, np.bool_)):
        function = true_function if predicate else false_function
        result = function(*rebuilt(operands, iter(tensors)))
        return rebuilt(result, iter([x for _, x in flattened(result, "result")[1]]))
    if not is_tensor(predicate):
        raise TypeError(
            f"cond: the predicate is a {type(predicate).__name__}; it must be a bool, or a bool "
            "tensor of one element"
        )
    chosen = as_tensor(predicate)
    check_predicate("cond", "the predicate", chosen.spec)
    structure: list[Any] = []

    def call(*inputs: Tensor) -> list[list[Tensor]]:
        results = [f(*rebuilt(operands, iter(inputs))) for f in (true_function, false_function)]
        (one, a), (other, b) = (flattened(each, "result") for each in results)
        wrong = tree.difference(one, other, "the result of the second function")
        if wrong:
            raise TypeError(
                f"cond: the functions return different structures: {wrong}, as in the first"
            )
        for (name, x), (_, y) in zip(a, b, strict=True):
            if not same_spec(x.spec, y.spec):
                kind = TypeError if x.dtype != y.dtype else ShapeError
                raise kind(
                    f"cond: {name} is {x.spec} if the predicate is true, and {y.spec} if it is "
                    "false; both functions must return the same shapes and dtypes"
                )
        structure.append(results[0])
        return [[x for _, x in a], [x for _, x in b]]

    made = _either(chosen, call, tensors)
    return rebuilt(structure[0], iter(made))


def _either(
    predicate: Tensor, call: Callable[..., list[list[Tensor]]], inputs: Sequence[Tensor]
) -> Sequence[Tensor]:
    """Trace `call`, which returns the results of both branches, and return the results of the
    chosen one."""
    return _chosen(predicate, inputs, *traced(call, [x.spec for x in inputs])[1:])


def _chosen(
    predicate: Tensor, inputs: Sequence[Tensor], whole: Body, captured: Sequence[Tensor]
) -> Sequence[Tensor]:
    """Return the results of the chosen branch. The branches' results are the halves of the outputs
    of `whole`."""
    half = len(whole.outputs) // 2
    if not half:
        return ()
    numbers = range(len(whole.inputs))
    true, false = (whole.cut(numbers, whole.outputs[at : at + half]) for at in (0, half))
    return tuple(apply(Cond(true, false), (predicate, *inputs, *captured)))


def gradient(op: Cond, out_grads: Sequence[Tensor], node: Any) -> Gradients:
    """Return the gradients of the inputs of `op`. They are the results of another `Cond`, which
    chooses between the gradients of the branches of `op`. `out_grads` are the gradients of the
    results of `op`, and `node` has its inputs."""
    predicate, *inputs = node.inputs
    op = op.fitted([x.spec for x in node.inputs])
    wanted = [n for n, x in enumerate(inputs) if x.requires_grad and is_floating(x.dtype)]
    grads = {n: grad for n, grad in enumerate(out_grads) if is_floating(grad.dtype)}

    def call(*given: Tensor) -> list[list[Tensor]]:
        values, of_results = given[: len(inputs)], given[len(inputs) :]
        out = dict(zip(grads, of_results, strict=True))
        return [_pulled_back(body, values, out, wanted) for body in (op.true, op.false)]

    given = [*inputs, *grads.values()]
    # Trace without recording gradients; `_pulled_back` marks the values that need one.
    _, whole, captured = call_recording(False, traced, call, [x.spec for x in given])
    input_grads = _chosen(predicate, given, whole, captured)
    result: list[Any] = [None] * len(node.inputs)
    for number, grad in zip(wanted, input_grads, strict=True):
        result[1 + number] = grad
    return tuple(result)


def _pulled_back(
    body: Body, inputs: Sequence[Tensor], out_grads: dict[int, Tensor], wanted: Sequence[int]
) -> list[Tensor]:
    """Compute the body's values again, and return the gradients of its `wanted` inputs from the
    gradients of its outputs."""
    needs = body.reached(wanted)
    values: list[Any] = list(inputs)
    for number, step in body.numbered():
        values.append(apply(step.op, tuple([values[i] for i in step.inputs])))
        values[number]._node.requires_grad = number in needs
    grads: dict[int, Any] = {}
    for at, grad in out_grads.items():
        _add(grads, body.outputs[at], grad)
    _pull_back(body, dict(enumerate(values)), grads, needs)
    return [grads[n] if n in grads else _zeros(inputs[n]) for n in wanted]


def _zeros(like: Tensor) -> Tensor:
    zero = Tensor(np.zeros(()), device=like.device, dtype=like.dtype, requires_grad=False)
    return zero.broadcast_to(like.shape)
