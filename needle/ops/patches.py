"""PyTorch's unfold and fold: patches of images (N, C, H, W) as columns, and sums of patches."""

from __future__ import annotations

from ..autograd.tensor import Tensor
from ..errors import ShapeError
from ._arguments import check_tensors
from ._windows import IntOrPair, as_window, pair
from .shape import permute, reshape
from .window import overlap_add, sliding_windows


def unfold(
    a: Tensor,
    kernel_size: IntOrPair,
    dilation: IntOrPair = 1,
    padding: IntOrPair = 0,
    stride: IntOrPair = 1,
) -> Tensor:
    """Return the patches of the images `a` (N, C, H, W) as columns: (N, C * kh * kw, patches). For
    one image (C, H, W), the result has no N.

    `kernel_size` (kh, kw), `dilation`, `padding` (with zeros) and `stride` are ints or pairs (rows,
    columns). Raises ShapeError if no patch fits.

    >>> ndl.unfold(ndl.zeros(1, 3, 4, 4), kernel_size=2, stride=2).shape
    (1, 12, 4)
    """
    check_tensors("unfold", a=a)
    if a.ndim == 3:
        whole = reshape(a, (1, *a.shape))
        columns = unfold(whole, kernel_size, dilation, padding, stride)
        return reshape(columns, columns.shape[1:])
    if a.ndim != 4:
        raise ShapeError(f"unfold: shape {a.shape} is not (N, C, H, W) or (C, H, W)")
    image = permute(a, (0, 2, 3, 1))
    found = sliding_windows(image, kernel_size, stride, padding, dilation)
    n, rows, across, kh, kw, c = found.shape
    return reshape(permute(found, (0, 5, 3, 4, 1, 2)), (n, c * kh * kw, rows * across))


def fold(
    a: Tensor,
    output_size: IntOrPair,
    kernel_size: IntOrPair,
    dilation: IntOrPair = 1,
    padding: IntOrPair = 0,
    stride: IntOrPair = 1,
) -> Tensor:
    """Return images (N, C, *output_size) that are the sums of the overlapping patches `a` (N,
    C * kh * kw, patches): the gradient of `unfold`. `kernel_size`, `dilation`, `padding` and
    `stride` are as in `unfold`. Raises ShapeError unless the shape of `a` fits such images."""
    check_tensors("fold", a=a)
    if a.ndim == 2:
        whole = reshape(a, (1, *a.shape))
        image = fold(whole, output_size, kernel_size, dilation, padding, stride)
        return reshape(image, image.shape[1:])
    if a.ndim != 3:
        raise ShapeError(f"fold: shape {a.shape} is not (N, C * kh * kw, patches)")
    window = as_window("fold", kernel_size, stride, padding, dilation)
    size = pair("fold", "output_size", output_size, 1)
    rows, columns = window.counts("fold", size)
    (kh, kw), (n, depth, patches) = window.kernel, a.shape
    if depth % (kh * kw) != 0 or patches != rows * columns:
        raise ShapeError(
            f"fold: shape {a.shape} must be {rows * columns} patches of {kh} x {kw} elements each, "
            f"as images of {size} have"
        )
    parts = permute(reshape(a, (n, depth // (kh * kw), kh, kw, rows, columns)), (0, 4, 5, 2, 3, 1))
    image = overlap_add(parts, size, stride, padding, dilation)
    return permute(image, (0, 3, 1, 2))
