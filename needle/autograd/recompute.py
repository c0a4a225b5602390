"""checkpoint: computes a block's values again in the backward pass instead of keeping them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from .. import rng
from ..common.state import call_recording, state
from ..common.tree import flatten, unflatten
from .node import Node
from .tensor import Tensor, Value


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: bool | None = None,
    preserve_rng_state: bool = True,
    **kwargs: Any,
) -> Any:
    """Return function(*args, **kwargs), without keeping the values that its gradient reads: the
    backward pass calls `function` again to compute them (Chen et al. 2016, "Training deep nets with
    sublinear memory cost"). Without arguments, `checkpoint` is a decorator, and every call of the
    decorated function is treated in this way.

    Gradients are the same, bit for bit, if the function does the same both times. With
    `preserve_rng_state`, needle's random numbers are the same both times. Running statistics are
    updated once. Compiled code chooses by itself which values to keep. PyTorch's `use_reentrant`
    has no effect.

    The backward pass raises RuntimeError if a tensor that the function reads was changed after the
    call, and if the second call runs other ops.

    >>> x = ndl.Tensor([1.0, 2.0])
    >>> ndl.checkpoint(lambda x: (x.exp() * x).sum(), x).backward()
    >>> x.grad.numpy().round(2)
    array([ 5.44, 22.17], dtype=float32)
    """
    if not callable(function):
        raise TypeError(f"checkpoint: function is a {type(function).__name__}, not a function")
    if not args and not kwargs:

        @functools.wraps(function, updated=())
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return _checkpointed(function, args, kwargs, preserve_rng_state)

        return wrapper
    return _checkpointed(function, args, kwargs, preserve_rng_state)


def _checkpointed(
    function: Callable[..., Any], args: Any, kwargs: dict[str, Any], preserve_rng: bool
) -> Any:
    """Run `checkpoint` with these arguments."""
    if state.trace is not None or not state.grad:
        return function(*args, **kwargs)
    block = _Block(function, args, kwargs, preserve_rng)
    out, run = _recorded(function, args, kwargs)
    if state.recorded is not None:
        state.recorded.include(run)
    block.forget(run)
    return out


class Recomputed:
    """A placeholder in a node's `saved` for values of a block that has to be run again."""

    __slots__ = ("block", "number")

    def __init__(self, block: _Block, number: int) -> None:
        self.block, self.number = block, number

    def restore(self, node: Node) -> None:
        """Set the saved values of `node` to the values that its op had."""
        while type(node.saved) is Recomputed:  # the block may have contained another block
            saved: Recomputed = node.saved
            saved.block.restore(node, saved.number)


class _Run:
    """The nodes that a call made, in the order of their ops, and the tensors from outside that it
    used."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.found: list[Value] = []
        self._made: set[Node] = set()

    def add(self, node: Node, inputs: Iterable[Any]) -> None:
        """Record that an op made `node` from `inputs`."""
        self._find(inputs)
        self.nodes.append(node)
        self._made.add(node)

    def include(self, other: _Run) -> None:
        """Add the record of a call within this call."""
        self._find(other.found)
        self.nodes += other.nodes
        self._made.update(other.nodes)

    def _find(self, values: Iterable[Any]) -> None:
        self.found += [x for x in values if x.requires_grad and x._node not in self._made]


def _recorded(function: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, _Run]:
    before, state.recorded = state.recorded, _Run()
    try:
        return function(*args, **kwargs), state.recorded
    finally:
        state.recorded = before


class _Block:
    """A call whose values will be computed again."""

    def __init__(
        self, function: Callable[..., Any], args: Any, kwargs: Any, preserve_rng: bool
    ) -> None:
        self._function = function
        self._tree, leaves = flatten((args, kwargs), "", lambda x: isinstance(x, Tensor))
        self._arguments = [x for _, x in leaves]
        self._rng = rng.get_state() if preserve_rng else None
        self._autocast = state.autocast
        self._count = 0
        # The tensors that the call reads, their values, and the write counter at that time.
        self._read: list[tuple[Value, Any, int]] = []
        self._values: list[Any] | None = None

    def forget(self, run: _Run) -> None:
        """Drop the values of the nodes that the call made."""
        self._count = len(run.nodes)
        for x in {id(x): x for x in (*self._arguments, *run.found)}.values():
            self._read.append((x, x._data, _parts(x._data)[0].device.kernels.writes()))
        for number, node in enumerate(run.nodes):
            if node.saved is not None or node.output is not None:
                node.saved, node.output = Recomputed(self, number), None

    def restore(self, node: Node, number: int) -> None:
        """Set the saved values of `node`, which op `number` of the call made, from a new run."""
        if self._values is None:
            self._run_again()
        assert self._values is not None and node.op is not None
        name, spec, *values = self._values[number]
        self._values[number] = None
        if (name, spec) != (node.op.name, node.spec):
            raise RuntimeError(
                f"checkpoint: the function made a {node.spec} by {node.op.name} in the forward "
                f"pass and a {spec} by {name} when it was run again; it must do the same both times"
            )
        node.saved, node.output, node.made = values

    def _run_again(self) -> None:
        for x, data, writes in self._read:
            if x._data is not data or any(p.view.written > writes for p in _parts(data)):
                raise RuntimeError(
                    f"checkpoint: {x.spec}, which the function reads, was changed since the "
                    "forward pass (by an optimizer step?), so its values cannot be computed again"
                )
        leaves = [Tensor(x._data, requires_grad=x.requires_grad) for x in self._arguments]
        args, kwargs = unflatten(self._tree, iter(leaves))
        now = rng.get_state() if self._rng is not None else None
        before = state.recomputing, state.autocast
        try:
            state.recomputing, state.autocast = True, self._autocast
            if self._rng is not None:
                rng.set_state(self._rng)
            _, run = call_recording(True, _recorded, self._function, args, kwargs)
        finally:
            state.recomputing, state.autocast = before
            if now is not None:
                rng.set_state(now)
        if len(run.nodes) != self._count:
            raise RuntimeError(
                f"checkpoint: the function recorded {self._count} ops in the forward pass and "
                f"{len(run.nodes)} when it was run again; it must do the same both times"
            )
        self._values = [(n.op.name, n.spec, n.saved, n.output, n.made) for n in run.nodes if n.op]


def _parts(data: Any) -> tuple[Any, ...]:
    return data if type(data) is tuple else (data,)
