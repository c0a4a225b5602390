"""Two-dimensional depthwise convolution, alone and followed by a pointwise one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kernel_lab.workload import Array, Case, Published, Size, Workload

_T4 = "Tesla T4 (Colab), from the document"
_COLAB = "Colab GPU, from the document"


def before(size: Size) -> int:
    """Return how many zeros to pad before the first row and column, so that the result is as large
    as the image."""
    return int((size["K"] - 1) // 2)


def placeholders(case: Case) -> tuple[Any, Any]:
    """Return the image (B, C, H, W) and the kernels (C, K, K)."""
    from needle_tvm._tvm.names import te

    k = case["K"]
    image = te.placeholder((case["B"], case["C"], case["H"], case["W"]), name="image")
    return image, te.placeholder((case["C"], k, k), name="kernel")


def checked(case: Case, image: Any, kernel: Any, name: str) -> Any:
    """Convolve each channel with its own kernel, with bounds checks where the kernel overhangs the
    edge."""
    from needle_tvm._tvm.names import te, tirx

    h, w, k, left = case["H"], case["W"], case["K"], before(case.size)
    kh, kw = te.reduce_axis((0, k), name="kh"), te.reduce_axis((0, k), name="kw")

    def term(b: Any, c: Any, y: Any, x: Any) -> Any:
        row, column = y + kh - left, x + kw - left
        inside = tirx.all(row >= 0, row < h, column >= 0, column < w)
        value = tirx.if_then_else(inside, image[b, c, row, column], 0.0)
        return te.sum(value * kernel[c, kh, kw], axis=[kh, kw])

    return te.compute((case["B"], case["C"], h, w), term, name=name)


def define(case: Case) -> list[Any]:
    """Define out[b, c, y, x] = sum over i, j of image[b, c, y + i - K/2, x + j - K/2] kernel[c, i,
    j]."""
    image, kernel = placeholders(case)
    return [image, kernel, checked(case, image, kernel, "out")]


def define_separable(case: Case) -> list[Any]:
    """Define the depthwise convolution, then each output channel as a weighted sum of the
    convolution's channels."""
    from needle_tvm._tvm.names import te

    image, kernel = placeholders(case)
    point = te.placeholder((case["O"], case["C"]), name="point")
    deep = checked(case, image, kernel, "deep")
    c = te.reduce_axis((0, case["C"]), name="c")
    out = te.compute(
        (case["B"], case["O"], case["H"], case["W"]),
        lambda b, o, y, x: te.sum(deep[b, c, y, x] * point[o, c], axis=c),
        name="out",
    )
    return [image, kernel, point, out]


def reference(size: Size, inputs: Sequence[Array]) -> Array:
    image, kernel = (array.astype(np.float64) for array in inputs[:2])
    k, left = size["K"], before(size)
    right = k - 1 - left
    padded = np.pad(image, ((0, 0), (0, 0), (left, right), (left, right)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (k, k), axis=(2, 3))
    return np.asarray(np.einsum("bcyxij,cij->bcyx", windows, kernel))


def reference_separable(size: Size, inputs: Sequence[Array]) -> Array:
    point = inputs[2].astype(np.float64)
    return np.asarray(np.einsum("bcyx,oc->boyx", reference(size, inputs), point))


def _image(size: Size) -> tuple[int, ...]:
    return (size["B"], size["C"], size["H"], size["W"])


def shapes(size: Size) -> list[tuple[int, ...]]:
    return [_image(size), (size["C"], size["K"], size["K"]), _image(size)]


def shapes_separable(size: Size) -> list[tuple[int, ...]]:
    image, kernel, _ = shapes(size)
    out = (size["B"], size["O"], size["H"], size["W"])
    return [image, kernel, (size["O"], size["C"]), out]


def _taps(extent: int, size: Size) -> int:
    """Return the number of (result, tap) pairs along one axis whose pixel lies inside the image."""
    left = before(size)
    offsets = range(-left, size["K"] - left)
    return sum(max(0, extent - abs(offset)) for offset in offsets)


def flops(size: Size) -> int:
    return 2 * size["B"] * size["C"] * _taps(size["H"], size) * _taps(size["W"], size)


def flops_separable(size: Size) -> int:
    return flops(size) + 2 * size["B"] * size["O"] * size["C"] * size["H"] * size["W"]


def limits(size: Size) -> str | None:
    if size["K"] > 64:
        return "the kernel (K) must not be larger than 64"
    return None


def drawn(size: Size) -> Size:
    """Return a size with a few channels, and a kernel that fits well into its image."""
    return {"B": 1, "C": 2, "H": max(8, 2 * size["K"]), "W": max(16, 2 * size["K"]), "K": 3, "O": 4}


_SIZE = {"B": 3, "C": 4, "H": 16, "W": 32, "K": 7}

DEPTHWISE = Workload(
    name="depthwise",
    title="2-D depthwise convolution",
    summary="each of C channels of H x W with its own K x K kernel; the result has the same size",
    sizes={"cpu": (_SIZE,), "cuda": (_SIZE,)},
    drawn=drawn,
    define=define,
    reference=reference,
    shapes=shapes,
    flops=flops,
    terms=lambda size: int(size["K"]) ** 2,
    limits=limits,
    published={
        "cuda": (
            Published("000", "naive", 3.2904, _T4, rung="naive"),
            Published(
                "000",
                "v1, 2-D blocks",
                0.7687,
                _T4,
                "the document claims a speedup of 2.3; its own times give 4.3",
                rung="blocks_2d",
            ),
            Published("000", "v2, block fusion", 0.0762, _T4, rung="block_fusion"),
            Published("000", "v3, 2-D threads", 0.0101, _T4, rung="threads_2d"),
            Published("000", "v4, outer fusion", 0.0080, _T4, rung="outer_fusion"),
            Published("000", "AutoTVM", 0.0035, _T4),
            Published("000", "PyTorch", 0.0696, _T4, rung="PyTorch"),
        )
    },
)

SEPARABLE = Workload(
    name="separable",
    title="2-D depthwise-separable convolution",
    summary="a depthwise convolution of C channels, then O weighted sums of them",
    sizes={"cpu": ({**_SIZE, "O": 8},), "cuda": ({**_SIZE, "O": 8},)},
    drawn=drawn,
    define=define_separable,
    reference=reference_separable,
    shapes=shapes_separable,
    flops=flops_separable,
    terms=lambda size: int(size["K"]) ** 2 * int(size["C"]),
    limits=limits,
    published={
        "cuda": (
            Published("004", "unoptimised", 1.5987, _COLAB, rung="naive"),
            Published(
                "004",
                "optimised",
                0.170368,
                _COLAB,
                "the document computes a speedup of 93 from 0.0159 s; 0.0015987 s gives 9.4",
                rung="fuse",
            ),
        )
    },
)
