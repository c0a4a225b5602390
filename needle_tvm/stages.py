"""The names of the stages, and of who computes a GPU's matrix products, for those who must not
import TVM to know them."""

from __future__ import annotations

STAGES = ("noopt", "fused", "tuned")
OWN, CUBLAS, MEASURED = "own", "cublas", "measured"  # see products.py
PRODUCTS = (OWN, CUBLAS, MEASURED)
