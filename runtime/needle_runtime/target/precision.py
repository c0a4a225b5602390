"""The precision of matmul and convolution operands: float32, or rounded to a narrower dtype.

| precision | significant bits | range of magnitudes | on |
|---|---|---|---|
| float32 | 24 | 1e-38 to 3e38 | every target |
| tf32 | 11 | as float32's | GPUs from sm_80 on; has no storage of its own |
| float16 | 11 | 6e-5 (6e-8 with fewer bits) to 65504 | every target |
| bfloat16 | 8 | as float32's | CPUs, GPUs from sm_80 on |

Sums are float32 for all operands, and so is everything outside matmuls and convolutions.
The product of two rounded operands is exact in float32, except for its smallest values.
"""

from __future__ import annotations

FLOAT32 = "float32"
PRECISIONS = (FLOAT32, "tf32", "float16", "bfloat16")
