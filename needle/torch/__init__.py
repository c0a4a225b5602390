"""PyTorch models as needle Modules. PyTorch is imported when used."""

from __future__ import annotations

from .loading import load
from .model import TorchModel

__all__ = ["TorchModel", "load"]
