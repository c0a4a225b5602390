"""functional_call: a module's forward pass with other weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..autograd.tensor import Tensor
from ..common.state import note_replaced, state
from ..errors import ShapeError
from ..nn.module import Module


def functional_call(
    module: Module,
    parameters_and_buffers: Mapping[str, Tensor] | Sequence[Mapping[str, Tensor]],
    args: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    strict: bool = False,
) -> Any:
    """Return module(*args, **kwargs), computed with other weights. `parameters_and_buffers` is a
    dict of tensors, or a list or tuple of such dicts; they replace the `module`'s parameters and
    buffers of the same names. If `args` is not a tuple, it is the only argument. After the call,
    the module has its own weights again; values that the call wrote to the replacements are
    dropped.

    Raises KeyError for names that the module does not have and, if `strict`, for names that are
    missing. Raises TypeError for values that are not Tensors, and ShapeError if a shape differs
    from the module's. Other threads must not use the module during the call.

    >>> model = nn.Linear(2, 1)
    >>> weights = {"weight": ndl.ones(2, 1), "bias": ndl.zeros(1, 1)}
    >>> ndl.func.functional_call(model, weights, ndl.ones(3, 2)).tolist()
    [[2.0], [2.0], [2.0]]
    """
    values: dict[str, Tensor] = {}
    given: Any = parameters_and_buffers
    for part in given if isinstance(given, (list, tuple)) else (given,):
        if not isinstance(part, Mapping):
            kind = type(part).__name__
            raise TypeError(f"functional_call: parameters_and_buffers is a {kind}, not a dict")
        values |= part
    own = dict(module.named_tensors()) | dict(module.named_buffers())
    unknown, missing = values.keys() - own.keys(), own.keys() - values.keys()
    if unknown or (strict and missing):
        wrong, what = (unknown, "has no") if unknown else (missing, "also has")
        raise KeyError(f"functional_call: {type(module).__name__} {what} {sorted(wrong)}")
    for name, value in values.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"functional_call: {name!r} is a {type(value).__name__}, not a Tensor")
        if value.shape != own[name].shape:
            text = f"has shape {own[name].shape}, not {value.shape}"
            raise ShapeError(f"functional_call: {name!r} {text}")
    tracing = state.trace is not None
    # Read all values before the first replacement: a value may be one of the module's tensors.
    new = {name: (None, x.node) if tracing else (x._data, x._node) for name, x in values.items()}
    before = [(own[name], own[name]._data, own[name]._node) for name in new]
    arguments = () if args is None else args if isinstance(args, tuple) else (args,)
    try:
        for name, (data, node) in new.items():
            own[name]._data, own[name]._node = data, node
        note_replaced()
        return module(*arguments, **(kwargs or {}))
    finally:
        for tensor, data, node in before:
            tensor._data, tensor._node = data, node
        note_replaced()
