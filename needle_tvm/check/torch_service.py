"""As `service`, for programs of PyTorch."""

from __future__ import annotations

import torch.export
import torch.nn.functional  # noqa: F401

from needle_tvm.check import torch_programs  # noqa: F401
from needle_tvm.check.service import serve

__all__ = ["serve"]
