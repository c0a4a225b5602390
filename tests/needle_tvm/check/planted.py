"""Importing this plants a wrong rule: the compiled sigmoid differs below -1."""

from needle import ops
from needle_tvm.check.campaign.judge import serve

__all__ = ["serve"]

_right = ops.Sigmoid.emit_te


def _wrong(self, k, x):
    return _right(self, k, k.topi.maximum(x, k.tirx.const(-1, x.dtype)))


ops.Sigmoid.emit_te = _wrong
