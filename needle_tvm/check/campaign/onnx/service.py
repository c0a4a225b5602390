"""The service of `campaign.service` for programs that pass through ONNX.

Each process imports ONNX Runtime for itself, because importing it starts threads.
"""

from __future__ import annotations

import onnx  # noqa: F401

from needle_tvm.check.campaign import service  # noqa: F401
from needle_tvm.check.campaign.onnx.programs import serve

__all__ = ["serve"]
