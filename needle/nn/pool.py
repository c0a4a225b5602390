"""Layers for pooling over (N, channels, ...) and for changing the resolution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from ..autograd.tensor import Tensor
from ..backend_ndarray.arguments import count, finite
from ..ops._windows import as_window
from . import functional as F
from .functional.conv import numbers
from .module import Module


class MaxPool2d(Module):
    """The largest element of each window: (N, C, H, W) -> (N, C, rows, columns).

    kernel_size, stride (None: kernel_size), padding and dilation are ints or pairs (rows, columns).
    With `ceil_mode`, partly filled windows at the end count too. With `return_indices`, the result
    is a pair: the largest elements, and their int64 positions in each flattened (H, W).

    >>> nn.MaxPool2d(2)(ndl.zeros(1, 3, 8, 8)).shape
    (1, 3, 4, 4)
    """

    axes: ClassVar[int] = 2

    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding
        self.dilation = dilation
        self.return_indices = return_indices
        self.ceil_mode = ceil_mode
        _check(type(self).__name__, self.axes, kernel_size, self.stride, padding, dilation)

    def forward(self, x: Tensor) -> Any:
        pool = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[self.axes - 1]
        window = (self.kernel_size, self.stride, self.padding, self.dilation)
        return pool(x, *window, self.ceil_mode, self.return_indices)

    def extra_repr(self) -> str:
        return (
            f"{self.kernel_size}, stride={self.stride}, padding={self.padding}, "
            f"dilation={self.dilation}{', ceil_mode=True' if self.ceil_mode else ''}"
        )


class MaxPool1d(MaxPool2d):
    """The largest element of each window: (N, C, L) -> (N, C, length). The arguments are as in
    MaxPool2d, with one number each."""

    axes = 1


class MaxPool3d(MaxPool2d):
    """The largest element of each window: (N, C, D, H, W) -> (N, C, planes, rows, columns). The
    arguments are as in MaxPool2d, as ints or sequences of three ints."""

    axes = 3


class AvgPool2d(Module):
    """The mean of each window: (N, C, H, W) -> (N, C, rows, columns).

    kernel_size, stride, padding and ceil_mode are as in MaxPool2d. Padding counts as zeros or,
    without `count_include_pad`, does not count. nn.functional.avg_pool2d explains
    `divisor_override`.
    """

    axes: ClassVar[int] = 2

    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad
        self.divisor_override = divisor_override
        _check(type(self).__name__, self.axes, kernel_size, self.stride, padding, 1)
        if divisor_override is not None:
            count(type(self).__name__, "divisor_override", divisor_override, 1)

    def forward(self, x: Tensor) -> Tensor:
        window = (self.kernel_size, self.stride, self.padding)
        counting = (self.ceil_mode, self.count_include_pad)
        if self.axes == 1:
            return F.avg_pool1d(x, *window, *counting)
        pool = F.avg_pool2d if self.axes == 2 else F.avg_pool3d
        return pool(x, *window, *counting, self.divisor_override)

    def extra_repr(self) -> str:
        return (
            f"{self.kernel_size}, stride={self.stride}, padding={self.padding}"
            f"{', ceil_mode=True' if self.ceil_mode else ''}"
        )


class AvgPool1d(AvgPool2d):
    """The mean of each window: (N, C, L) -> (N, C, length). Otherwise like AvgPool2d, with single
    numbers instead of pairs and without divisor_override."""

    axes = 1

    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        super().__init__(kernel_size, stride, padding, ceil_mode, count_include_pad)


class AvgPool3d(AvgPool2d):
    """The mean of each window: (N, C, D, H, W) -> (N, C, planes, rows, columns). Otherwise like
    AvgPool2d, with three numbers instead of pairs."""

    axes = 3


def _check(name: str, axes: int, *window: Any) -> None:
    """Raise TypeError or ValueError unless kernel, stride, padding and dilation are each an int or
    `axes` ints in range."""
    if axes == 2:
        as_window(name, *window)
        return
    whats = ("kernel_size", "stride", "padding", "dilation")
    for what, value in zip(whats, window, strict=True):
        for number in numbers(name, what, value, axes):
            count(name, what, number, 0 if what == "padding" else 1)


class AdaptiveAvgPool2d(Module):
    """The means of windows that divide rows and columns into `output_size` parts (an int or a pair;
    None keeps the extent): (N, C, H, W) -> (N, C, *output_size)."""

    def __init__(self, output_size: Any) -> None:
        super().__init__()
        self.output_size = output_size

    def forward(self, x: Tensor) -> Tensor:
        return F.adaptive_avg_pool2d(x, self.output_size)

    def extra_repr(self) -> str:
        return f"{self.output_size}"


class AdaptiveAvgPool1d(AdaptiveAvgPool2d):
    """The means of `output_size` windows that divide the last axis: (N, C, L) -> (N, C,
    output_size)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.adaptive_avg_pool1d(x, self.output_size)


class AdaptiveMaxPool2d(AdaptiveAvgPool2d):
    """The largest elements of windows that divide rows and columns into `output_size` parts (an int
    or a pair; None keeps the extent): (N, C, H, W) -> (N, C, *output_size)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.adaptive_max_pool2d(x, self.output_size)


class AdaptiveAvgPool3d(AdaptiveAvgPool2d):
    """The means of windows that divide planes, rows and columns into `output_size` parts (an int or
    three ints; None keeps the extent): (N, C, D, H, W) -> (N, C, *output_size)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.adaptive_avg_pool3d(x, self.output_size)


class AdaptiveMaxPool1d(AdaptiveAvgPool2d):
    """The largest elements of `output_size` windows that divide the last axis: (N, C, L) -> (N, C,
    output_size)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.adaptive_max_pool1d(x, self.output_size)


class AdaptiveMaxPool3d(AdaptiveAvgPool2d):
    """The largest elements of windows that divide planes, rows and columns into `output_size` parts
    (an int or three ints; None keeps the extent): (N, C, D, H, W) -> (N, C, *output_size)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.adaptive_max_pool3d(x, self.output_size)


class LPPool2d(Module):
    """sum(x ** norm_type) ** (1 / norm_type) of each window: (N, C, H, W) -> (N, C, rows, columns).
    kernel_size, stride and ceil_mode are as in MaxPool2d."""

    axes: ClassVar[int] = 2

    def __init__(
        self, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False
    ) -> None:
        super().__init__()
        self.norm_type = finite(type(self).__name__, "norm_type", norm_type)
        self.kernel_size, self.stride, self.ceil_mode = kernel_size, stride, ceil_mode

    def forward(self, x: Tensor) -> Tensor:
        pool = (F.lp_pool1d, F.lp_pool2d, F.lp_pool3d)[self.axes - 1]
        return pool(x, self.norm_type, self.kernel_size, self.stride, self.ceil_mode)

    def extra_repr(self) -> str:
        return (
            f"norm_type={self.norm_type}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"ceil_mode={self.ceil_mode}"
        )


class LPPool1d(LPPool2d):
    """sum(x ** norm_type) ** (1 / norm_type) of each window: (N, C, L) -> (N, C, length). Otherwise
    like LPPool2d."""

    axes = 1


class LPPool3d(LPPool2d):
    """sum(x ** norm_type) ** (1 / norm_type) of each window: (N, C, D, H, W) -> (N, C, planes,
    rows, columns). Otherwise like LPPool2d."""

    axes = 3


class PixelShuffle(Module):
    """(N, C r r, H, W) -> (N, C, H r, W r) with r = upscale_factor: groups of r * r channels become
    squares of r x r pixels (Shi et al. 2016)."""

    def __init__(self, upscale_factor: int) -> None:
        super().__init__()
        self.upscale_factor = count("PixelShuffle", "upscale_factor", upscale_factor)

    def forward(self, x: Tensor) -> Tensor:
        return F.pixel_shuffle(x, self.upscale_factor)

    def extra_repr(self) -> str:
        return f"{self.upscale_factor}"


class PixelUnshuffle(Module):
    """(N, C, H r, W r) -> (N, C r r, H, W) with r = downscale_factor: the inverse of
    PixelShuffle."""

    def __init__(self, downscale_factor: int) -> None:
        super().__init__()
        self.downscale_factor = count("PixelUnshuffle", "downscale_factor", downscale_factor)

    def forward(self, x: Tensor) -> Tensor:
        return F.pixel_unshuffle(x, self.downscale_factor)

    def extra_repr(self) -> str:
        return f"{self.downscale_factor}"


class Upsample(Module):
    """Resize the last axes of x (N, C, L), (N, C, H, W) or (N, C, D, H, W) to `size` or by
    `scale_factor`. The arguments are as in nn.functional.interpolate."""

    def __init__(
        self,
        size: int | Sequence[int] | None = None,
        scale_factor: float | Sequence[float] | None = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ) -> None:
        super().__init__()
        if (size is None) == (scale_factor is None):
            raise ValueError(f"{type(self).__name__}: give either size or scale_factor")
        self.size, self.scale_factor = size, scale_factor
        self.mode, self.align_corners = mode, align_corners
        self.recompute_scale_factor = recompute_scale_factor

    def forward(self, x: Tensor) -> Tensor:
        return F.interpolate(
            x,
            self.size,
            self.scale_factor,
            self.mode,
            self.align_corners,
            self.recompute_scale_factor,
        )

    def extra_repr(self) -> str:
        given = "size" if self.scale_factor is None else "scale_factor"
        return f"{given}={getattr(self, given)}, mode={self.mode!r}"


class UpsamplingNearest2d(Upsample):
    """Upsample for (N, C, H, W), to `size` or by `scale_factor`, with the nearest element."""

    def __init__(
        self,
        size: int | Sequence[int] | None = None,
        scale_factor: float | Sequence[float] | None = None,
    ) -> None:
        super().__init__(size, scale_factor, "nearest")


class UpsamplingBilinear2d(Upsample):
    """Bilinear Upsample for (N, C, H, W), to `size` or by `scale_factor`. The centres of the corner
    elements stay in place."""

    def __init__(
        self,
        size: int | Sequence[int] | None = None,
        scale_factor: float | Sequence[float] | None = None,
    ) -> None:
        super().__init__(size, scale_factor, "bilinear", align_corners=True)
