"""ONNX models in and out. The package `onnx` (extra `needle-dl[onnx]`) is imported when used."""

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
