"""Find the line of a model's own code that needle refuses, for error messages."""

from __future__ import annotations

import linecache
import os
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import needle


def at_line_of(error: BaseException) -> str:
    """Return the line of the model's code at which PyTorch raised an `error`: " (at file.py:3:
    code)", or ""."""
    frames = traceback.walk_tb(error.__traceback__)
    return _innermost((frame.f_code.co_filename, number) for frame, number in frames)


def at_line_of_call(model: Any, inputs: Sequence[Any], is_meant: Callable[..., bool]) -> str:
    """Return the line of a model's code that calls the first operator for which `is_meant(operator,
    args, kwargs)` is true, in the format of `at_line_of`. The `model` runs on copies of the
    `inputs` and of its weights."""
    import torch

    lines = list[str]()

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(
            self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if not lines and is_meant(operator, args, kwargs or {}):
                stack = traceback.extract_stack()
                lines.append(_innermost((each.filename, each.lineno or 0) for each in stack))
            return operator(*args, **(kwargs or {}))

    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    copies = {name: each.detach().clone() for name, each in state.items()}
    with torch.no_grad(), torch.random.fork_rng(devices=[]), Watch():
        torch.func.functional_call(model, copies, tuple(each.clone() for each in inputs))
    return lines[0] if lines else ""


def draws(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a call of an `operator` with `args` and `kwargs` draws random numbers. Dropout
    draws nothing outside training or with a probability of 0."""
    import torch

    if torch.Tag.nondeterministic_seeded not in getattr(operator, "tags", ()):
        return False
    arguments = operator._schema.arguments
    given = {each.name: each.default_value for each in arguments} | {**kwargs}
    given |= dict(zip((each.name for each in arguments), args, strict=False))
    trains = given.get("train", given.get("training", True))
    nothing = any(given.get(name) == 0 for name in ("p", "dropout_p", "dropout"))
    return trains is not False and not nothing


def has_shape_of_values(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether the result shape of a call of `operator` with `args` and `kwargs` depends on
    values."""
    import torch

    tagged = torch.Tag.dynamic_output_shape in getattr(operator, "tags", ())
    if not tagged or not str(operator).startswith("aten.index"):
        return tagged
    masks = [each for each in args[1] if each is not None]
    return any(each.dtype in (torch.bool, torch.uint8) for each in masks)


def _innermost(places: Iterable[tuple[str, int]]) -> str:
    """Return the last of these `places` that is outside the code of PyTorch, needle and Python."""
    import torch

    own = (torch, needle, traceback)
    folders = tuple(os.path.dirname(each.__file__ or "") + os.sep for each in own)
    of_others = [each for each in places if not each[0].startswith((*folders, "<"))]
    if not of_others:
        return ""
    path, number = of_others[-1]
    code = linecache.getline(path, number).strip()
    return f" (at {os.path.basename(path)}:{number}{f': {code}' if code else ''})"
