"""Let functions take 0 or -1 as the axis of a 0-d tensor, as in PyTorch."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from ..autograd.tensor import TensorTuple
from .shape import reshape
from .tuples import make_tuple

F = TypeVar("F", bound=Callable[..., Any])


def takes_scalars(function: F) -> F:
    """Let the axis (or axes) of a function be 0 or -1 for a 0-d tensor. The tensor then counts as
    one element along that axis, and each result is 0-d again."""
    parameters = list(inspect.signature(function).parameters.values())
    at = next(i for i, each in enumerate(parameters) if each.name in ("axis", "axes"))
    name, default = parameters[at].name, parameters[at].default

    @functools.wraps(function)
    def called(a: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(a, "shape", None) == ():
            given = args[at - 1] if len(args) >= at else kwargs.get(name, default)
            if given in (0, -1) or given in ((0,), (-1,), [0], [-1]):
                return _without_axes(function(reshape(a, (1,)), *args, **kwargs))
        return function(a, *args, **kwargs)

    return called  # type: ignore[return-value]


def _without_axes(result: Any) -> Any:
    if isinstance(result, TensorTuple):
        return make_tuple(*map(_without_axes, result))
    return reshape(result, ()) if result.shape == (1,) else result  # topk may return no elements
