"""The registry of converters of ONNX operators; see `needle.conversion.registry`."""

from __future__ import annotations

from ..conversion.registry import Converter, Registry

_REGISTRY = Registry(f"{__package__}.converters")

converter, twin = _REGISTRY.converter, _REGISTRY.twin
find, find_twin, names = _REGISTRY.find, _REGISTRY.find_twin, _REGISTRY.names

__all__ = ["Converter", "converter", "find", "find_twin", "names", "twin"]
