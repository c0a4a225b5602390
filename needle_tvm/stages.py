"""The names of the stages, for those who must not import TVM to know them."""

from __future__ import annotations

STAGES = ("noopt", "fused", "tuned")
