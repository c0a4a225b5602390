"""Reverse-mode differentiation. No function recurses: a graph may be any number of ops deep."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from .. import backend_ndarray as nd
from ..backend_ndarray.dtypes import ITEMSIZE
from ..backend_ndarray.locks import fork_safe_lock
from ..common.state import call_recording, note_gradient, state
from ..errors import ShapeError
from ..sizes.extents import is_symbolic
from . import anomaly, hooks
from .node import Node
from .recompute import Recomputed
from .tensor import Tensor, TensorTuple, handle, make_const


def topological_order(
    roots: Iterable[Node], requires_grad: bool = False, until: Collection[Node] = ()
) -> list[Node]:
    """Return all nodes that `roots` depend on, inputs before users, in a fixed order.

    With `requires_grad`, the list has only nodes through which gradients flow. The walk does not go
    on to the inputs of nodes in `until`.
    """
    order: list[Node] = []
    seen: set[int] = set()
    for root in roots:
        if id(root) in seen:
            continue
        seen.add(id(root))
        # (node, its unvisited inputs)
        stack = [(root, iter(root.input_nodes))]
        while stack:
            node, rest = stack[-1]
            for child in rest:
                if id(child) not in seen and (child.requires_grad or not requires_grad):
                    seen.add(id(child))
                    stack.append((child, iter(() if child in until else child.input_nodes)))
                    break
            else:
                order.append(node)
                stack.pop()
    return order


def backward(root: Tensor, out_grad: Tensor | None, create_graph: bool, retain: bool) -> None:
    """See Tensor.backward."""
    call_recording(create_graph, _accumulate, root, out_grad, create_graph, retain)


def grad(
    root: Tensor,
    inputs: Tensor | Iterable[Tensor],
    out_grad: Tensor | None = None,
    create_graph: bool = False,
    retain_graph: bool | None = None,
) -> list[Tensor]:
    """Return d(root)/d(input), weighted by `out_grad` (ones if None), for each of `inputs`, which
    are leaves that `root` depends on. No `.grad` changes. `create_graph`, `retain_graph` and errors
    are as in Tensor.backward.

    `inputs` may be one Tensor. Also raises RuntimeError for an input that is not a leaf, requires
    no gradient, or does not contribute to `root`.

    >>> x = ndl.Tensor([3.0])
    >>> (first,) = ndl.autograd.grad((x**3).sum(), [x], create_graph=True)
    >>> (second,) = ndl.autograd.grad(first.sum(), [x])
    >>> first.item(), second.item()
    (27.0, 18.0)
    """
    _check_requires_grad(root)
    inputs = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    retain = create_graph if retain_graph is None else retain_graph
    for number, tensor in enumerate(inputs):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"grad: input {number} is a {type(tensor).__name__}, not a Tensor")
        if tensor.node.op is not None or not tensor.node.requires_grad:
            what = "is not a leaf" if tensor.node.op is not None else "does not require a gradient"
            raise RuntimeError(f"grad: input {number}, {tensor.spec}, {what}")
    leaves = {tensor.node for tensor in inputs}
    reached = set(topological_order((root.node,), requires_grad=True))
    for number, tensor in enumerate(inputs):
        if tensor.node not in reached:
            raise RuntimeError(f"grad: the tensor does not depend on input {number}, {tensor.spec}")
    gradients = dict(
        call_recording(create_graph, _found, root, out_grad, create_graph, retain, leaves)
    )
    return [gradients[tensor.node] for tensor in inputs]


def _accumulate(root: Tensor, out_grad: Tensor | None, create_graph: bool, retain: bool) -> None:
    """Add the gradients of `root` to `grad` of the leaves that it depends on."""
    state.accumulating = True
    try:
        found = _found(root, out_grad, create_graph, retain)
    finally:
        state.accumulating = False
    with _accumulating:
        for leaf, part in found:
            leaf.grad = part if leaf.grad is None else leaf.grad + part
    for leaf, _ in found:
        if leaf.attached is not None:
            hooks.accumulated(leaf)
    if state.trace is None:
        note_gradient()


def _found(
    root: Tensor,
    out_grad: Tensor | None,
    create_graph: bool,
    retain: bool,
    wanted: Collection[Node] | None = None,
) -> list[tuple[Node, Tensor]]:
    """Return (leaf, gradient) for the `wanted` leaves (None: all) that `root` depends on. The
    gradients have their own memory, unless they have a graph."""
    _check_requires_grad(root)
    if out_grad is None:
        grad = _ones(root)
    else:
        _check_out_grad(root, out_grad)
        grad = out_grad if out_grad.dtype == root.dtype else out_grad.astype(root.dtype)
    own = not create_graph and state.trace is None
    if own and not grad.realize_cached_data().is_compact:
        grad = make_const(grad.realize_cached_data().compact())
    if anomaly.mode.on and anomaly.mode.checks:
        anomaly.check_seed(grad)
    found = _gradients({root.node: grad}, retain)
    if wanted is not None:
        found = [(leaf, part) for leaf, part in found if leaf in wanted]
    return _own_memory(found, grad) if own else found


# Several threads may differentiate graphs that share leaves: the lock protects the sums.
_accumulating = fork_safe_lock()


def _check_requires_grad(root: Tensor) -> None:
    if not root.node.requires_grad:
        raise RuntimeError(
            f"backward: {root!r} does not require a gradient (made under no_grad, or from tensors "
            "that do not require one)"
        )


def _check_out_grad(root: Tensor, out_grad: Any) -> None:
    if not isinstance(out_grad, Tensor):
        raise TypeError(f"backward: out_grad is a {type(out_grad).__name__}, not a Tensor")
    if out_grad.shape != root.shape:
        raise ShapeError(f"backward: out_grad has shape {out_grad.shape}, not {root.shape}")
    if out_grad.device is not root.device:
        raise ValueError(
            f"backward: out_grad and tensor are on different devices: {out_grad.device} and "
            f"{root.device}"
        )


def _ones(like: Tensor) -> Tensor:
    return _filled(like.shape, 1, like)


def _filled(shape: tuple[int, ...], value: int, like: Any) -> Tensor:
    """Return a constant with the dtype and device of `like`, a Tensor or Spec."""
    symbolic = is_symbolic(shape)
    data = nd.full(() if symbolic else shape, value, like.dtype, like.device)
    made = Tensor(data, requires_grad=False)
    return made.broadcast_to(shape) if symbolic else made


def pulled_back(
    made: Callable[..., Tensor], inputs: Sequence[Tensor], out_grad: Tensor
) -> tuple[Tensor | None, ...]:
    """Return the gradients of made(*inputs) with respect to `inputs`, None for inputs that require
    none.

    An op uses this as its gradient rule if a function of other ops, `made`, computes the same
    result. The computation is recorded if gradients are recorded."""
    root = call_recording(True, made, *inputs)
    return vector_jacobian([root], [out_grad], inputs, state.grad, state.grad, is_inner=True)


def vector_jacobian(
    roots: Sequence[Tensor],
    out_grads: Sequence[Tensor],
    ends: Sequence[Tensor],
    create_graph: bool,
    retain_graph: bool,
    is_inner: bool = False,
) -> tuple[Tensor | None, ...]:
    """Return a gradient for each of `ends`, which are tensors that `roots` depend on: the sum of
    the roots' gradients weighted by `out_grads`, or None if no gradient arrives. `is_inner` marks a
    call within an op's gradient rule."""
    pending: dict[Node, Any] = {}
    for root, grad in zip(roots, out_grads, strict=True):
        node = root.node
        if node.requires_grad:
            pending[node] = grad if node not in pending else pending[node] + grad
    nodes = [x.node for x in ends]
    how = pending, retain_graph, set(nodes), is_inner
    found = dict(call_recording(create_graph, _gradients, *how))
    return tuple([found.get(node) for node in nodes])


def _gradients(
    pending: dict[Node, Any],
    retain: bool,
    ends: Collection[Node] = (),
    is_inner: bool = False,
) -> list[tuple[Node, Tensor]]:
    """Return (leaf, gradient) for every leaf that requires a gradient, with zeros if the ops on the
    way pass none back. Nodes in `ends` count as leaves, but are left out if no gradient arrives.
    `pending` has the gradients of the roots, and is emptied. `is_inner` marks a call within an op's
    gradient rule."""
    order = topological_order(pending, requires_grad=True, until=ends)
    leaves = []
    autocast, state.autocast = state.autocast, None  # gradients have the dtypes of values
    try:
        while order:
            node = order.pop()  # also drops this reference to the node
            if node not in pending:
                if node.op is None and node not in ends:
                    spec = node.specs[0]
                    leaves.append((node, _filled(spec.shape, 0, spec)))
            elif node in ends:
                leaves.append((node, pending.pop(node)))
            else:
                if node.attached is not None:
                    pending[node] = hooks.changed(node, pending[node], _copied)
                if node.op is None:
                    leaves.append((node, pending.pop(node)))
                else:
                    _pass_back(node, pending, retain, is_inner)
    finally:
        state.autocast = autocast
    leaves.reverse()
    return leaves


def _copied(gradient: Tensor) -> Tensor:
    """Return a copy of the gradient in its own memory, or the gradient itself if it is
    recorded."""
    if state.grad or state.trace is not None:
        return gradient
    return make_const(gradient.realize_cached_data().copy())


def _pass_back(node: Node, pending: dict[Node, Any], retain: bool, is_inner: bool) -> None:
    """Pass the gradient of `node` on to its inputs.

    This is a separate function so that its locals are freed before the next node's gradient.
    """
    op: Any = node.op
    grad = pending.pop(node)
    _check_kept(node)
    grads: Any = NotImplemented
    if op.backward is not None and not state.grad and state.trace is None:
        grads = _by_arrays(node, grad)
    if grads is NotImplemented:
        if type(node.spec) is tuple and not op.partial_gradients:
            grad = _whole(node, grad)
        grads = op.gradient_as_tuple(grad, handle(node, node.output))
    del grad
    if not retain:
        node.free()
    inputs = node.input_nodes
    if len(grads) != len(inputs):
        raise RuntimeError(
            f"{op.name}: gradient gave {len(grads)} results for {len(inputs)} inputs"
        )
    if anomaly.mode.on and anomaly.mode.checks and not is_inner:
        anomaly.check(node, grads)
    for source, part in zip(inputs, grads, strict=True):
        if part is not None and source.requires_grad:
            before = pending.get(source)
            pending[source] = part if before is None else _add(before, part)


def _own_memory(found: list[tuple[Node, Tensor]], out_grad: Tensor) -> list[tuple[Node, Tensor]]:
    """Return the gradients, copied where one shares memory with another one or with `out_grad`.

    Ops may return a gradient as a view, or the same gradient for several inputs. If gradients
    shared memory, an in-place write to one leaf's gradient would change the gradient of another
    leaf.
    """
    starts, ends = ([edge] for edge in _bytes(out_grad))  # disjoint, in order
    out = []
    for leaf, grad in found:
        data = grad.realize_cached_data()
        first, last = _bytes(grad)
        at = bisect.bisect(starts, first)
        shared = (at > 0 and ends[at - 1] > first) or (at < len(starts) and starts[at] < last)
        if not data.is_compact or shared:
            grad = make_const(data.copy())
        elif first < last:
            starts.insert(at, first)
            ends.insert(at, last)
        out.append((leaf, grad))
    return out


def _bytes(x: Tensor) -> tuple[int, int]:
    """Return the address range [first, end) of a compact tensor's memory."""
    data = x.realize_cached_data()
    start = data.view.data_ptr
    return start, start + data.size * ITEMSIZE[data.dtype]


def _by_arrays(node: Node, grad: Any) -> Any:
    """Return the gradients with respect to the inputs from the op's own kernels (Op.backward), or
    NotImplemented."""
    assert node.op is not None and node.op.backward is not None
    if type(node.spec) is tuple:
        parts = grad if type(grad) is tuple else tuple(grad)
        data: Any = tuple([None if part is None else part.cached_data for part in parts])
    else:
        data = grad.cached_data
    found = node.op.backward(data, node)
    if found is NotImplemented:
        return found
    return tuple([None if part is None else handle(None, part) for part in found])


def _add(a: Any, b: Any) -> Any:
    """Return the sum of two gradients. The gradient of a tuple-valued node is a tuple with None for
    zero."""
    if isinstance(a, (tuple, TensorTuple)) or isinstance(b, tuple):
        return tuple(
            y if x is None else x if y is None else x + y for x, y in zip(a, b, strict=True)
        )
    return a + b


def _whole(node: Node, grad: Sequence[Any]) -> tuple[Tensor, ...]:
    """Return the gradient of a tuple-valued node, with zeros in place of None."""
    return tuple(
        _filled(spec.shape, 0, spec) if part is None else part
        for part, spec in zip(grad, node.specs, strict=True)
    )


def _check_kept(node: Node) -> None:
    """Make sure that the values that the node's gradient reads exist: compute them again if
    `checkpoint` dropped them. Raises RuntimeError if they were freed or written in place."""
    name = node.op.name if node.op else ""
    if type(node.saved) is Recomputed:
        node.saved.restore(node)
    if node.freed:
        raise RuntimeError(
            f"{name}: an earlier backward() freed the saved tensors; call that one with "
            "retain_graph=True"
        )
    stale = node.stale()
    if stale is not None:
        raise RuntimeError(
            f"backward: {name} needs a {stale.dtype}{list(stale.shape)} value as it was in the "
            "forward pass, but its memory was changed in place since (by an optimizer step?)"
        )
