"""ONNX models in and out. The package `onnx` (extra `needle-dl[onnx]`) is imported when used.

For those who change this package:

- `load`: `loading` checks a file and takes the weights out of it, `reading` makes a `Graph`
  (`graph`) that is free of protobuf, and `model` holds it as an `OnnxModel`, whose nodes `execute`
  runs. `registry` finds their converters (`converters`, one file for each family); `values` of
  `needle.conversion` and `geometry` have the code that converters share.
- `export`: `writing` writes a traced graph. `emit` has the rules, a table by class of op.
- docs/onnx.md lists the operators.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .model import load
    from .writing import export

__all__ = ["export", "load"]

_HOMES = {"export": "writing", "load": "model"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'needle.onnx' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
