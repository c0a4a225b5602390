"""ONNX models in and out. The package `onnx` (extra `needle-dl[onnx]`) is imported when used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .writing import export

if TYPE_CHECKING:
    from .model import OnnxModel

__all__ = ["export", "load"]


def load(source: Any, fixed: Mapping[str, Any] | None = None) -> OnnxModel:
    """The ONNX model in `source`, a path or an `onnx.ModelProto`, as a needle Module in eval mode.

    `fixed` gives inputs a value that never changes, by name; they are then no inputs any more. An
    input whose values decide shapes must be fixed to be traced.

    Raises ImportError without the package `onnx`, FileNotFoundError, ModelError for a file that is
    damaged or breaks ONNX's rules, and UnsupportedError that lists every operator that needle does
    not have.
    """
    from .model import OnnxModel
    from .reading import read

    return OnnxModel(read(source), fixed)
