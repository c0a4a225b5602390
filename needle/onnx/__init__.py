"""Load and export ONNX models. The package `onnx` (extra `needle-dl[onnx]`) is imported on first
use.

For developers of this package:

- `load`: `loading` checks a file and separates the weights, `reading` builds a `Graph` (`graph`)
  without protobuf, and `model` holds the graph as an `OnnxModel`. `execute` runs the nodes with the
  converters that `registry` finds (`converters`, one file per family of operators). `geometry` and
  `needle.conversion.values` have the code that converters share.
- `export`: `writing` writes a traced graph. `emit` has one rule per class of op.
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
