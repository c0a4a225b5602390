"""ONNX models in and out. The package `onnx` (extra `needle-dl[onnx]`) is imported when used."""

from __future__ import annotations

from .export import export

__all__ = ["export"]
