"""Hooks: functions that run before or after a module's forward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Hooked(Protocol):
    """A Module with hooks."""

    _hooks: tuple[Hook, ...]

    def forward(self, *args: Any, **kwargs: Any) -> Any: ...


class Hook:
    """A registered hook; `remove` removes it from its module."""

    # This class wraps the function, so that a hook that is a Module does not become part of the
    # state.
    __slots__ = ("before", "fn", "module", "with_kwargs")

    def __init__(self, module: Hooked, fn: Callable[..., Any], before: bool, kwargs: bool) -> None:
        if not callable(fn):
            name = type(module).__name__
            raise TypeError(f"{name}: a hook must be a function, not a {type(fn).__name__}")
        self.module, self.fn, self.before, self.with_kwargs = module, fn, before, kwargs
        module._hooks = (*module._hooks, self)

    def remove(self) -> None:
        """Remove the hook from its module; a second call does nothing."""
        self.module._hooks = tuple(hook for hook in self.module._hooks if hook is not self)

    def __enter__(self) -> Hook:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def call(module: Hooked, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run `module.forward(*args, **kwargs)` and the module's hooks, in their order of registration,
    and return the output."""
    hooks = module._hooks
    for hook in hooks:
        if not hook.before:
            continue
        if hook.with_kwargs:
            changed = hook.fn(module, args, kwargs)
            if changed is None:
                continue
            if not isinstance(changed, tuple) or len(changed) != 2:
                raise TypeError(
                    f"{type(module).__name__}: a forward pre-hook with kwargs returned a "
                    f"{type(changed).__name__}, not None or (args, kwargs)"
                )
            args, kwargs = changed
        else:
            changed = hook.fn(module, args)
            if changed is not None:
                args = changed if isinstance(changed, tuple) else (changed,)
    output = module.forward(*args, **kwargs)
    for hook in hooks:
        if not hook.before:
            given = (args, kwargs) if hook.with_kwargs else (args,)
            changed = hook.fn(module, *given, output)
            output = output if changed is None else changed
    return output
