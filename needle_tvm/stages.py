"""The names of the stages and of the implementations of matmuls on GPUs."""

from __future__ import annotations

STAGES = ("noopt", "fused", "tuned")
OWN, CUBLAS, MEASURED = "own", "cublas", "measured"  # see compiler/products.py
PRODUCTS = (OWN, CUBLAS, MEASURED)
