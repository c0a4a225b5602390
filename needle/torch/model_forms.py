"""The kinds of models that `load` accepts: a module, an exported program, or the program's file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import UnsupportedError
from . import archive


def module_of(
    model: Any, args: Sequence[Any], kwargs: Mapping[str, Any], trusted: bool = False
) -> tuple[Any, Sequence[Any], Mapping[str, Any]]:
    """Return the model as a `torch.nn.Module`, and its example arguments.

    `model` is a module, an `ExportedProgram`, or the path of a program's file (`.pt2`). Only a
    `trusted` file may run code (`archive`). If neither `args` nor `kwargs` are given, the program's
    own example arguments are used. Raises UnsupportedError for any other kind of model, and
    ModelError for a file that holds no program or could run code.
    """
    import torch

    if type(trusted) is not bool:
        raise TypeError(f"trusted={trusted!r}: must be True or False")
    if isinstance(model, (str, os.PathLike)):
        model = archive.load(model, trusted)
    if isinstance(model, torch.export.ExportedProgram):
        if not args and not kwargs and model.example_inputs is not None:
            args, kwargs = model.example_inputs
        # The program's guards check the sizes of its own export; our export creates new guards.
        return model.module(check_guards=False), args, kwargs
    if isinstance(model, torch.jit.ScriptModule):
        raise UnsupportedError(
            f"model is a {type(model).__name__}: give the module it was scripted or traced from"
        )
    if not isinstance(model, torch.nn.Module):
        raise UnsupportedError(f"model is a {type(model).__name__}, not a torch.nn.Module")
    return model, args, kwargs
