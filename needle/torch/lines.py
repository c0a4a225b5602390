"""The line of a model's own code that cannot be taken, for messages."""

from __future__ import annotations

import linecache
import os
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import needle


def at_line_of(error: BaseException) -> str:
    """Where the model's code was when PyTorch raised an error: " (at file.py:3: code)", or ""."""
    frames = traceback.walk_tb(error.__traceback__)
    return _innermost((frame.f_code.co_filename, number) for frame, number in frames)


def at_line_of_call(model: Any, inputs: Sequence[Any], is_meant: Callable[..., bool]) -> str:
    """Where a model's code calls the first operator for which `is_meant(operator, args, kwargs)`,
    in the same words. Runs the model on copies of the inputs."""
    import torch

    found = list[str]()

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(
            self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if not found and is_meant(operator, args, kwargs or {}):
                stack = traceback.extract_stack()
                found.append(_innermost((each.filename, each.lineno or 0) for each in stack))
            return operator(*args, **(kwargs or {}))

    with torch.random.fork_rng(devices=[]), Watch():
        model(*[each.clone() for each in inputs])
    return found[0] if found else ""


def _innermost(places: Iterable[tuple[str, int]]) -> str:
    """The last place that is in neither PyTorch's nor this package's code, nor Python's own."""
    import torch

    own = (torch, needle, traceback)
    folders = tuple(os.path.dirname(each.__file__ or "") + os.sep for each in own)
    of_others = [each for each in places if not each[0].startswith((*folders, "<"))]
    if not of_others:
        return ""
    path, number = of_others[-1]
    code = linecache.getline(path, number).strip()
    return f" (at {os.path.basename(path)}:{number}{f': {code}' if code else ''})"
