"""Rules for assignments to attributes of a Module: PyTorch's rules, extended to lists and dicts."""

from __future__ import annotations

from typing import Any

from ..autograd.tensor import Tensor
from .parameter import Parameter


def check_assigned(module: Any, kind: type, name: str, value: Any, before: Any) -> None:
    """Raise TypeError unless `value` may replace `before` as the attribute `name` of `module`.
    `kind` is the class Module.

    None or a Parameter may replace any value, and nothing else may replace a Parameter. A Module
    may also replace a Module, and a Tensor or a Module may replace a registered buffer. A list,
    tuple or dict must not have a plain Tensor where the old value has a Parameter.
    """
    if value is None or isinstance(value, Parameter):
        return
    label, given = f"{type(module).__name__}.{name}", type(value).__name__
    if isinstance(before, Parameter) or name in module._parameter_names:
        raise _no_parameter(label, value)
    if isinstance(value, kind):
        return
    if isinstance(before, kind):
        raise TypeError(f"{label} holds a Module, not a {given}: assign a Module or None")
    if name in module._buffer_names and not isinstance(value, Tensor):
        raise TypeError(f"{label} holds a buffer, not a {given}: assign a Tensor or None")
    if isinstance(before, (list, tuple, dict)):
        _check_inside(label, value, before)


def _check_inside(label: str, value: Any, before: Any) -> None:
    pending = [(label, value, before)]
    while pending:
        label, value, before = pending.pop()
        if isinstance(before, Parameter):
            if isinstance(value, Tensor) and not isinstance(value, Parameter):
                raise _no_parameter(label, value)
        elif isinstance(before, (list, tuple, dict)) and type(value) is type(before):
            kept = before if isinstance(before, dict) else dict(enumerate(before))
            items = value if isinstance(value, dict) else dict(enumerate(value))
            pending += [(f"{label}.{k}", items[k], kept[k]) for k in kept if k in items]


def _no_parameter(label: str, value: Any) -> TypeError:
    return TypeError(
        f"{label} holds a Parameter, not a {type(value).__name__}: assign a Parameter or None, or "
        "write into the Parameter (p.data = tensor, or p -= ... under needle.no_grad())"
    )
