"""Reverse-mode differentiation. Nothing here recurses: graphs may be any number of ops deep."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from . import autograd
from ._state import enable_grad, no_grad, state
from .errors import ShapeError


def topological_order(
    roots: Iterable[autograd.Node], requires_grad: bool = False
) -> list[autograd.Node]:
    """Every node that `roots` depend on, inputs before users, in a fixed order.

    With `requires_grad` only nodes that gradients flow through.
    """
    order: list[autograd.Node] = []
    seen: set[int] = set()
    for root in roots:
        if id(root) in seen:
            continue
        seen.add(id(root))
        # (node, its inputs still to visit)
        stack = [(root, iter(root.input_nodes))]
        while stack:
            node, rest = stack[-1]
            for child in rest:
                if id(child) not in seen and (child.requires_grad or not requires_grad):
                    seen.add(id(child))
                    stack.append((child, iter(child.input_nodes)))
                    break
            else:
                order.append(node)
                stack.pop()
    return order


def backward(root: autograd.Tensor, out_grad: autograd.Tensor | None, create_graph: bool) -> None:
    """See Tensor.backward."""
    node = root.node
    if not node.requires_grad:
        raise RuntimeError(
            f"backward: {root!r} does not require a gradient (made under no_grad, or from tensors "
            "that do not require one)"
        )
    if out_grad is None:
        out_grad = _ones(root)
    elif not isinstance(out_grad, autograd.Tensor):
        raise TypeError(f"backward: out_grad is a {type(out_grad).__name__}, not a Tensor")
    elif out_grad.shape != root.shape:
        raise ShapeError(f"backward: out_grad has shape {out_grad.shape}, the tensor {root.shape}")
    with enable_grad() if create_graph else no_grad():
        for leaf, grad in _gradients(node, out_grad):
            leaf.grad = grad if leaf.grad is None else leaf.grad + grad


def _ones(like: autograd.Tensor) -> autograd.Tensor:
    ones = autograd.nd.full(like.shape, 1, like.dtype, like.device)
    return autograd.Tensor(ones, requires_grad=False)


def _gradients(
    root: autograd.Node, out_grad: autograd.Tensor
) -> list[tuple[autograd.Node, autograd.Tensor]]:
    """(leaf, gradient) for every leaf that requires one."""
    order = topological_order((root,), requires_grad=True)
    pending: dict[autograd.Node, Any] = {root: out_grad}
    leaves = []
    while order:
        node = order.pop()  # drops our reference as well
        grad = pending.pop(node, None)
        if grad is None:
            continue
        op = node.op
        if op is None:
            leaves.append((node, grad))
            continue
        if type(node.spec) is tuple:
            grad = _whole(node, grad)
        if node.saved is not None:
            _check_unchanged(node)
        grads = op.gradient_as_tuple(grad, node.value())
        inputs = node.input_nodes
        if len(grads) != len(inputs):
            raise RuntimeError(
                f"{op.name}: gradient gave {len(grads)} results for {len(inputs)} inputs"
            )
        for source, part in zip(inputs, grads, strict=True):
            if part is not None and source.requires_grad:
                before = pending.get(source)
                pending[source] = part if before is None else _add(before, part)
    leaves.reverse()
    return leaves


def _add(a: Any, b: Any) -> Any:
    """Sum of two gradients; those of tuple-valued nodes are tuples with None for zero."""
    if isinstance(a, (tuple, autograd.TensorTuple)) or isinstance(b, tuple):
        return tuple(
            y if x is None else x if y is None else x + y for x, y in zip(a, b, strict=True)
        )
    return a + b


def _whole(node: autograd.Node, grad: Sequence[Any]) -> tuple[autograd.Tensor, ...]:
    """The gradient of a tuple-valued node with its Nones made zeros."""
    return tuple(
        autograd.Tensor(
            autograd.nd.full(spec.shape, 0, spec.dtype, spec.device), requires_grad=False
        )
        if part is None
        else part
        for part, spec in zip(grad, node.specs, strict=True)
    )


def _check_unchanged(node: autograd.Node) -> None:
    for source in node.input_nodes:
        if source.changed > node.made and state.trace is None:
            assert node.op is not None
            raise RuntimeError(
                f"backward: {node.op.name} needs a {source.spec} leaf as it was in the forward "
                "pass, but it was changed in place since (by an optimizer step?)"
            )
