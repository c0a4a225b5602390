"""Convolutions over (N, channels, ...)."""

from __future__ import annotations

from math import prod
from typing import Any, ClassVar

from .. import init
from ..autograd.tensor import Tensor
from ..backend_ndarray import DeviceLike
from ..backend_ndarray.arguments import counts
from ..ops._windows import as_window
from . import functional as F
from .functional.border import PADDING_MODES, border
from .functional.conv import numbers, same_padding, transposed_window
from .module import Module
from .parameter import Parameter


class Conv(Module):
    """2-D convolution: (N, in_channels, H, W) -> (N, out_channels, rows, columns).

    kernel_size, stride, padding and dilation are ints or pairs (rows, columns); padding None means
    kernel_size // 2, which keeps the extents for odd kernels with stride and dilation 1. weight
    (kh, kw, in_channels / groups, out_channels) and bias (out_channels,) are drawn uniformly
    between -b and b = 1 / sqrt(kh * kw * in_channels / groups). Raises ValueError unless groups
    divides both channel counts.
    """

    _parameter_names = frozenset({"weight", "bias"})
    _torch_axes: ClassVar = {"weight": (3, 2, 0, 1)}

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        bias: bool = True,
        device: DeviceLike | None = None,
        dtype: str = "float32",
        *,
        padding: Any = None,
        groups: int = 1,
        dilation: Any = 1,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        counts(name, in_channels=in_channels, out_channels=out_channels, groups=groups)
        if in_channels % groups or out_channels % groups:
            raise ValueError(
                f"{name}: groups {groups} does not divide {in_channels} and {out_channels} channels"
            )
        stay = padding is None  # pad so that stride 1 keeps the extents
        kernel = as_window(name, kernel_size, stride, 0 if stay else padding, dilation).kernel
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = kernel_size
        self.stride = stride
        self.padding = tuple(k // 2 for k in kernel) if stay else padding
        self.groups = groups
        self.dilation = dilation
        where: dict[str, Any] = {"device": device, "dtype": dtype}
        self.weight = Parameter(self._drawn_weight((*kernel, in_channels // groups), where))
        self.bias = None
        if bias:
            bound = prod(self.weight.shape[:-1]) ** -0.5
            self.bias = Parameter(init.rand(out_channels, low=-bound, high=bound, **where))

    def _drawn_weight(self, window: tuple[int, ...], where: dict[str, Any]) -> Tensor:
        """Return the weight for a `window` (kh, kw, in_channels / groups)."""
        bound = prod(window) ** -0.5
        return init.rand(*window, self.out_channels, low=-bound, high=bound, **where)

    def forward(self, x: Tensor) -> Tensor:
        options = self.stride, self.padding, self.dilation, self.groups
        return F.conv2d(x, self.weight, self.bias, *options)

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, {self.kernel_size}, stride={self.stride}, "
            f"padding={self.padding}, groups={self.groups}, dilation={self.dilation}, "
            f"bias={self.bias is not None}"
        )


class _Convolution(Module):
    """Base class of convolutions over `axes` dimensions, with PyTorch's arguments."""

    _parameter_names = frozenset({"weight", "bias"})

    axes: ClassVar[int]
    transposed: ClassVar[bool] = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any,
        padding: Any,
        dilation: Any,
        groups: int,
        bias: bool,
        padding_mode: str,
        device: DeviceLike | None,
        dtype: str,
    ) -> None:
        super().__init__()
        name, axes = type(self).__name__, self.axes
        modes = PADDING_MODES[:1] if self.transposed else PADDING_MODES
        if padding_mode not in modes:
            raise ValueError(f"{name}: padding_mode {padding_mode!r} is not one of {modes}")
        self.padding_mode = padding_mode
        counts(name, in_channels=in_channels, out_channels=out_channels, groups=groups)
        if in_channels % groups or out_channels % groups:
            raise ValueError(
                f"{name}: groups {groups} does not divide {in_channels} and {out_channels} channels"
            )
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size = numbers(name, "kernel_size", kernel_size, axes)
        self.stride = numbers(name, "stride", stride, axes)
        self.dilation = numbers(name, "dilation", dilation, axes)
        if isinstance(padding, str):
            same_padding(name, padding, self.kernel_size, self.stride, self.dilation)
            self.padding: Any = padding
        else:
            self.padding = numbers(name, "padding", padding, axes)
            self._check_least("padding", self.padding, 0)
        for what in ("kernel_size", "stride", "dilation"):
            self._check_least(what, getattr(self, what), 1)
        # A transposed convolution has a weight of the same shape as the convolution it transposes.
        ends = (out_channels, in_channels) if self.transposed else (in_channels, out_channels)
        shape = (*self.kernel_size, ends[0] // groups, ends[1])
        bound = prod(shape[:-1]) ** -0.5
        where: dict[str, Any] = {"low": -bound, "high": bound, "device": device, "dtype": dtype}
        self.weight = Parameter(init.rand(*shape, **where))
        self.bias = Parameter(init.rand(out_channels, **where)) if bias else None

    def _check_least(self, what: str, values: tuple[int, ...], least: int) -> None:
        for value in values:
            if value < least:
                raise ValueError(f"{type(self).__name__}: {what} {value} must be {least} or more")

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, {self.kernel_size}, stride={self.stride}, "
            f"padding={self.padding!r}, dilation={self.dilation}, groups={self.groups}, "
            f"bias={self.bias is not None}"
        )


class Conv2d(_Convolution):
    """2-D convolution with PyTorch's arguments: (N, in_channels, H, W) -> (N, out_channels, rows,
    columns).

    kernel_size, stride, padding and dilation are ints or pairs (rows, columns). padding is the
    number of zeros on each side (0 by default), "valid" (no padding) or "same" (keeps the extents;
    needs stride 1). padding_mode "reflect", "replicate" or "circular" pads with values of the input
    instead of zeros. weight (kh, kw, in_channels / groups, out_channels) and bias (out_channels,)
    are drawn uniformly between -b and b = 1 / sqrt(kh * kw * in_channels / groups). Raises
    ValueError unless groups divides both channel counts.

    >>> layer = nn.Conv2d(3, 8, kernel_size=3, stride=2, padding=1)
    >>> layer(ndl.zeros(1, 3, 32, 32)).shape, layer.weight.shape
    ((1, 8, 16, 16), (3, 3, 3, 8))
    """

    axes = 2
    _torch_axes: ClassVar = {"weight": (3, 2, 0, 1)}

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: DeviceLike | None = None,
        dtype: str = "float32",
    ) -> None:
        window, rest = (kernel_size, stride, padding, dilation), (padding_mode, device, dtype)
        super().__init__(in_channels, out_channels, *window, groups, bias, *rest)

    def forward(self, x: Tensor) -> Tensor:
        conv = (F.conv1d, F.conv2d, F.conv3d)[self.axes - 1]
        padding = self.padding
        if self.padding_mode != "zeros":
            name = type(self).__name__
            if isinstance(padding, str):
                sides = same_padding(name, padding, self.kernel_size, self.stride, self.dilation)
            else:
                sides = [(n, n) for n in padding]
            x, padding = border(name, x, sides, self.padding_mode), 0
        options = self.stride, padding, self.dilation, self.groups
        return conv(x, self.weight, self.bias, *options)


class Conv1d(Conv2d):
    """1-D convolution: (N, in_channels, L) -> (N, out_channels, length). The weight is (k,
    in_channels / groups, out_channels). Otherwise like Conv2d, with single numbers instead of
    pairs."""

    axes = 1
    _torch_axes: ClassVar = {"weight": (2, 1, 0)}


class Conv3d(Conv2d):
    """3-D convolution: (N, in_channels, D, H, W) -> (N, out_channels, planes, rows, columns). The
    weight is (kd, kh, kw, in_channels / groups, out_channels). Otherwise like Conv2d, with three
    numbers instead of pairs."""

    axes = 3
    _torch_axes: ClassVar = {"weight": (4, 3, 0, 1, 2)}


class ConvTranspose2d(_Convolution):
    """The transpose of a 2-D convolution: (N, in_channels, rows, columns) -> (N, out_channels, H,
    W) with H = (rows - 1) * stride - 2 * padding + dilation * (kh - 1) + output_padding + 1.

    weight (kh, kw, out_channels / groups, in_channels) and bias (out_channels,) are drawn uniformly
    between -b and b = 1 / sqrt(kh * kw * out_channels / groups). The weight has the layout of the
    convolution that this layer transposes. Raises ValueError unless each output_padding is below
    the stride or the dilation along its axis. Otherwise like Conv2d.

    >>> nn.ConvTranspose2d(8, 3, kernel_size=4, stride=2, padding=1)(ndl.zeros(1, 8, 16, 16)).shape
    (1, 3, 32, 32)
    """

    axes = 2
    transposed = True
    _torch_axes: ClassVar = {"weight": (3, 2, 0, 1)}

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Any = 1,
        padding_mode: str = "zeros",
        device: DeviceLike | None = None,
        dtype: str = "float32",
    ) -> None:
        name = type(self).__name__
        if isinstance(padding, str):
            raise TypeError(f"{name}: padding {padding!r} is a str; give numbers")
        window, rest = (kernel_size, stride, padding, dilation), (padding_mode, device, dtype)
        super().__init__(in_channels, out_channels, *window, groups, bias, *rest)
        given = transposed_window(
            name, self.axes, self.stride, self.padding, output_padding, self.dilation
        )
        self.output_padding = given[2]

    def forward(self, x: Tensor) -> Tensor:
        conv = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[self.axes - 1]
        options = self.stride, self.padding, self.output_padding, self.groups, self.dilation
        return conv(x, self.weight, self.bias, *options)


class ConvTranspose1d(ConvTranspose2d):
    """The transpose of a 1-D convolution: (N, in_channels, L) -> (N, out_channels, length). The
    weight is (k, out_channels / groups, in_channels). Otherwise like ConvTranspose2d."""

    axes = 1
    _torch_axes: ClassVar = {"weight": (2, 1, 0)}


class ConvTranspose3d(ConvTranspose2d):
    """The transpose of a 3-D convolution: (N, in_channels, planes, rows, columns) -> (N,
    out_channels, D, H, W). The weight is (kd, kh, kw, out_channels / groups, in_channels).
    Otherwise like ConvTranspose2d, with three numbers instead of pairs."""

    axes = 3
    _torch_axes: ClassVar = {"weight": (4, 3, 0, 1, 2)}
