"""One square matrix product, in needle, NumPy and PyTorch: factories of needle_tvm.process.timing.

They import nothing that their contestant does not need.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Contestant = tuple[Callable[[], object], Callable[[], list[np.ndarray]]]


def operands(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Two float32 matrices, the same in every process."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((size, size), dtype=np.float32) for _ in range(2))
    return a, b


def needle_product(size: int) -> Contestant:
    """NDArray's @."""
    from needle import backend_ndarray as nd

    a, b = (nd.array(x) for x in operands(size))
    return lambda: a @ b, lambda: [(a @ b).numpy()]


def numpy_product(size: int) -> Contestant:
    """NumPy's @; which kernels its OpenBLAS takes is for the environment to say."""
    a, b = operands(size)
    return lambda: a @ b, lambda: [a @ b]


def torch_product(size: int, threads: int) -> Contestant:
    """PyTorch's @ in inference mode."""
    import torch

    torch.set_num_threads(threads)
    a, b = (torch.from_numpy(x) for x in operands(size))

    def call() -> Any:
        with torch.inference_mode():
            return a @ b

    return call, lambda: [call().numpy()]
