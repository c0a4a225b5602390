"""Convolution and pooling over (N, C, H, W)."""

from __future__ import annotations

from typing import Any

from .. import init, ops
from ..backend_ndarray import Device
from ..backend_ndarray.arguments import counts
from ..ops._windows import as_window
from ..tensor import Tensor
from .module import Module, Parameter


def channels_last(x: Tensor) -> Tensor:
    """(N, C, H, W) -> (N, H, W, C)."""
    return ops.permute(x, (0, 2, 3, 1))


def channels_first(x: Tensor) -> Tensor:
    """(N, H, W, C) -> (N, C, H, W)."""
    return ops.permute(x, (0, 3, 1, 2))


class Conv(Module):
    """2-D convolution: (N, in_channels, H, W) -> (N, out_channels, rows, columns).

    kernel_size, stride, padding and dilation are ints or pairs (rows, columns); padding None keeps
    the extents at stride 1 (kernel_size // 2). weight (kh, kw, in_channels / groups, out_channels)
    is drawn Kaiming-uniform, bias (out_channels,) uniformly on +-1 / sqrt(kh * kw * in_channels /
    groups). ValueError unless groups divides both channel counts.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        bias: bool = True,
        device: Device | None = None,
        dtype: str = "float32",
        *,
        padding: Any = None,
        groups: int = 1,
        dilation: Any = 1,
    ) -> None:
        super().__init__()
        counts("Conv", in_channels=in_channels, out_channels=out_channels, groups=groups)
        if in_channels % groups or out_channels % groups:
            raise ValueError(
                f"Conv: groups {groups} does not divide {in_channels} and {out_channels} channels"
            )
        stay = padding is None  # stride 1 then keeps the extents
        kernel = as_window("Conv", kernel_size, stride, 0 if stay else padding, dilation).kernel
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = kernel_size
        self.stride = stride
        self.padding = tuple(k // 2 for k in kernel) if stay else padding
        self.groups = groups
        self.dilation = dilation
        where: dict[str, Any] = {"device": device, "dtype": dtype}
        taps = kernel[0] * kernel[1]
        inputs = in_channels // groups
        shape = (*kernel, inputs, out_channels)
        self.weight = Parameter(
            init.kaiming_uniform(inputs * taps, out_channels * taps, shape=shape, **where)
        )
        self.bias = None
        if bias:
            bound = (inputs * taps) ** -0.5
            self.bias = Parameter(init.rand(out_channels, low=-bound, high=bound, **where))

    def forward(self, x: Tensor) -> Tensor:
        y = ops.conv(
            channels_last(x), self.weight, self.stride, self.padding, self.dilation, self.groups
        )
        if self.bias is not None:
            y = ops.add(y, self.bias)
        return channels_first(y)

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, {self.kernel_size}, stride={self.stride}, "
            f"padding={self.padding}, groups={self.groups}, dilation={self.dilation}, "
            f"bias={self.bias is not None}"
        )


class MaxPool2d(Module):
    """Largest element of each window: (N, C, H, W) -> (N, C, rows, columns).

    kernel_size, stride (None: kernel_size), padding and dilation are ints or pairs (rows, columns).
    """

    def __init__(
        self, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding
        self.dilation = dilation
        as_window("MaxPool2d", kernel_size, self.stride, padding, dilation)

    def forward(self, x: Tensor) -> Tensor:
        pooled = ops.max_pool(
            channels_last(x), self.kernel_size, self.stride, self.padding, self.dilation
        )
        return channels_first(pooled)

    def extra_repr(self) -> str:
        return (
            f"{self.kernel_size}, stride={self.stride}, padding={self.padding}, "
            f"dilation={self.dilation}"
        )


class AvgPool2d(Module):
    """Mean of each window, in which padding counts as zeros: (N, C, H, W) -> (N, C, rows, columns).

    The arguments are those of MaxPool2d.
    """

    def __init__(self, kernel_size: Any, stride: Any = None, padding: Any = 0) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding
        as_window("AvgPool2d", kernel_size, self.stride, padding, 1)

    def forward(self, x: Tensor) -> Tensor:
        pooled = ops.avg_pool(channels_last(x), self.kernel_size, self.stride, self.padding)
        return channels_first(pooled)

    def extra_repr(self) -> str:
        return f"{self.kernel_size}, stride={self.stride}, padding={self.padding}"
