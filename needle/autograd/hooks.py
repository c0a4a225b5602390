"""Hooks on the gradient of a tensor, and `retain_grad` for non-leaves.

They are stored on the tensor's node, where the engine finds them. In anomaly mode (see `anomaly`),
a node also records the line of user code that created it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from ..errors import ShapeError
from .node import Node


class Attached:
    """Everything that is attached to a node."""

    __slots__ = ("accumulated", "hooks", "keeps", "made_at")

    def __init__(self) -> None:
        self.hooks: tuple[Hook, ...] = ()  # called with the gradient
        self.accumulated: tuple[Hook, ...] = ()  # called with a leaf after its `grad` has changed
        self.keeps = False  # whether a node that is not a leaf keeps its gradient
        self.made_at = ""  # the line of user code that made the node, as the end of a message


class Hook:
    """A registered hook; `remove` removes it from its tensor."""

    __slots__ = ("attached", "fn", "tensor")

    def __init__(self, owner: str, attached: Attached, fn: Callable[..., Any], tensor: Any) -> None:
        if not callable(fn):
            raise TypeError(f"{owner}: hook is a {type(fn).__name__}, not a function")
        self.attached, self.fn, self.tensor = attached, fn, weakref.ref(tensor)

    def remove(self) -> None:
        """Take the hook off its tensor; a second call does nothing."""
        kept = self.attached
        kept.hooks = tuple(hook for hook in kept.hooks if hook is not self)
        kept.accumulated = tuple(hook for hook in kept.accumulated if hook is not self)

    def __enter__(self) -> Hook:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


class Hooked:
    """The methods of Tensor that attach something to its gradient."""

    __slots__ = ()

    def register_hook(self: Any, hook: Callable[[Any], Any]) -> Hook:
        """Call `hook(gradient)` when a backward pass has computed this tensor's gradient, before it
        passes the gradient on. The hook returns None or a new gradient to replace it. Returns a
        Hook; its method `remove` removes the hook, and so does the end of a `with` statement that
        holds it. Compiled code contains the effects that hooks had while tracing.

        Raises RuntimeError if this tensor requires no gradient. The backward pass raises TypeError
        or ShapeError for a returned gradient that does not fit.

        >>> x = ndl.Tensor([1.0, 2.0])
        >>> with x.register_hook(lambda gradient: gradient * 10):
        ...     (x * x).sum().backward()
        >>> x.grad.tolist()
        [20.0, 40.0]
        """
        attached = self._attached("register_hook")
        made = Hook("register_hook", attached, hook, self)
        attached.hooks = (*attached.hooks, made)
        return made

    def register_post_accumulate_grad_hook(self: Any, hook: Callable[[Any], Any]) -> Hook:
        """Call `hook(tensor)` when `backward` has added to the `grad` of this leaf. Returns a Hook,
        as `register_hook` does. Raises RuntimeError for a tensor that is not a leaf or requires no
        gradient."""
        owner = "register_post_accumulate_grad_hook"
        attached = self._attached(owner)
        if not self.is_leaf:
            raise RuntimeError(f"{owner}: this {self.spec} tensor is not a leaf")
        made = Hook(owner, attached, hook, self)
        attached.accumulated = (*attached.accumulated, made)
        return made

    def retain_grad(self: Any) -> None:
        """Keep this tensor's gradient in `grad` after a backward pass, as for leaves. Raises
        RuntimeError if the tensor requires no gradient."""
        self._attached("retain_grad").keeps = True

    @property
    def retains_grad(self: Any) -> bool:
        """Whether this tensor is not a leaf but keeps its gradient."""
        return not self.is_leaf and self.node.attached is not None and self.node.attached.keeps

    def _attached(self: Any, owner: str) -> Attached:
        if not self.requires_grad:
            raise RuntimeError(f"{owner}: this {self.spec} tensor does not require a gradient")
        node: Node = self.node
        if node.attached is None:
            node.attached = Attached()
        return node.attached


def changed(node: Node, gradient: Any, owned: Callable[[Any], Any]) -> Any:
    """Run the hooks of `node`; return its gradient afterwards. `owned` copies a gradient into its
    own memory."""
    attached: Attached = node.attached
    for hook in attached.hooks:
        new = hook.fn(gradient)
        if new is not None:
            _check(hook, new, gradient)
            gradient = owned(new)
    if attached.keeps and node.op is not None:
        mine = owned(gradient)
        node.grad = mine if node.grad is None else node.grad + mine
    return gradient


def accumulated(node: Node) -> None:
    """Call the hooks of a leaf whose `grad` has changed."""
    for hook in node.attached.accumulated:
        tensor = hook.tensor()
        if tensor is not None:
            hook.fn(tensor)


def _check(hook: Hook, new: Any, gradient: Any) -> None:
    if not isinstance(new, type(gradient)):
        kind = type(new).__name__
        raise TypeError(f"register_hook: {hook.fn!r} returned a {kind}, not a Tensor or None")
    if new.shape != gradient.shape:
        raise ShapeError(
            f"register_hook: {hook.fn!r} returned shape {new.shape} for a gradient of shape "
            f"{gradient.shape}"
        )
    if new.dtype != gradient.dtype or new.device is not gradient.device:
        raise TypeError(
            f"register_hook: {hook.fn!r} returned {new.spec} for a gradient {gradient.spec}"
        )
