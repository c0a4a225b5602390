"""Normalization layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from .. import init
from ..autograd.tensor import Tensor
from ..backend_ndarray import DeviceLike
from ..backend_ndarray.arguments import count, counts, not_negative, share
from ..common.state import state
from ..errors import ShapeError
from . import functional as F
from .functional.norm import normalized_axes
from .module import Module
from .parameter import Parameter


class LayerNorm1d(Module):
    """Normalize the last axis (of extent `dim`) to mean 0 and variance 1, then scale and shift.

    weight and bias have shape (dim,).
    """

    def __init__(
        self, dim: int, eps: float = 1e-5, device: DeviceLike | None = None, dtype: str = "float32"
    ) -> None:
        super().__init__()
        self.dim = count("LayerNorm1d", "dim", dim)
        self.eps = not_negative("LayerNorm1d", "eps", eps)
        where: dict[str, Any] = {"device": device, "dtype": dtype}
        self.weight = Parameter(init.ones(dim, **where))
        self.bias = Parameter(init.zeros(dim, **where))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, (self.dim,), self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.dim}, eps={self.eps}"


class LayerNorm(Module):
    """Normalize the last axes of x, whose extents are `normalized_shape` (an int means one axis),
    to mean 0 and variance 1, then scale and shift (Ba et al. 2016).

    With elementwise_affine, the layer has a weight of shape normalized_shape and, with bias, also a
    bias of that shape.

    >>> nn.LayerNorm(2)(ndl.Tensor([[1.0, 3.0]])).numpy().round(2).tolist()
    [[-1.0, 1.0]]
    """

    _parameter_names = frozenset({"weight", "bias"})

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: DeviceLike | None = None,
        dtype: str = "float32",
    ) -> None:
        super().__init__()
        self.normalized_shape = normalized_axes("LayerNorm", normalized_shape)
        self.eps = not_negative("LayerNorm", "eps", eps)
        where: dict[str, Any] = {"device": device, "dtype": dtype}
        shape = self.normalized_shape
        self.weight = Parameter(init.ones(*shape, **where)) if elementwise_affine else None
        self.bias = Parameter(init.zeros(*shape, **where)) if elementwise_affine and bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}"


class RMSNorm(Module):
    """Divide the last axes of x, whose extents are `normalized_shape` (an int means one axis), by
    sqrt(mean square + eps), then scale (Zhang and Sennrich 2019).

    eps None means the machine epsilon of x's dtype. With elementwise_affine, the layer has a weight
    of shape normalized_shape.
    """

    _parameter_names = frozenset({"weight"})

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: DeviceLike | None = None,
        dtype: str = "float32",
    ) -> None:
        super().__init__()
        self.normalized_shape = normalized_axes("RMSNorm", normalized_shape)
        self.eps = None if eps is None else not_negative("RMSNorm", "eps", eps)
        weight = init.ones(*self.normalized_shape, device=device, dtype=dtype)
        self.weight = Parameter(weight) if elementwise_affine else None

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}"


class _PerChannel(Module):
    """Base class of norms with statistics for each of `dim` channels, which are the second axis of
    x."""

    _parameter_names = frozenset({"weight", "bias"})
    _buffer_names = frozenset({"running_mean", "running_var", "num_batches_tracked"})

    forms: ClassVar[dict[int, str]]  # the shapes allowed for x, by number of axes

    def __init__(
        self,
        dim: int,
        eps: float,
        momentum: float | None,
        affine: bool,
        track_running_stats: bool,
        device: DeviceLike | None,
        dtype: str,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        self.dim = count(name, "dim", dim)
        self.eps = not_negative(name, "eps", eps)
        self.momentum = None if momentum is None else share(name, "momentum", momentum)
        where: dict[str, Any] = {"device": device, "dtype": dtype}
        self.weight = Parameter(init.ones(dim, **where)) if affine else None
        self.bias = Parameter(init.zeros(dim, **where)) if affine else None
        self.running_mean = init.zeros(dim, **where) if track_running_stats else None
        self.running_var = init.ones(dim, **where) if track_running_stats else None
        # PyTorch always counts batches; needle needs the count only if momentum is None.
        is_counting = track_running_stats and momentum is None
        self.num_batches_tracked = init.zeros(device=device, dtype="int64") if is_counting else None

    @property
    def torch_unused(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("num_batches_tracked",) if self.num_batches_tracked is None else ()

    def _check(self, x: Tensor) -> None:
        shape = x.shape
        if len(shape) not in self.forms or shape[1] != self.dim:
            name, form = type(self).__name__, " or ".join(self.forms.values())
            raise ShapeError(f"{name}: x has shape {shape}, not {form} with dim={self.dim}")

    def extra_repr(self) -> str:
        return f"{self.dim}, eps={self.eps}, momentum={self.momentum}"


class BatchNorm1d(_PerChannel):
    """Normalize each of the `dim` columns of (N, dim) or channels of (N, dim, L) over all other
    axes, then scale and shift (Ioffe and Szegedy 2015).

    Train mode uses the batch's mean and biased variance. The mean and the unbiased variance update
    the buffers running_mean and running_var: running = (1 - momentum) * running + momentum * batch
    (raises ShapeError if a batch has one value per channel). If momentum is None, the buffers are
    the averages over all batches so far; the buffer num_batches_tracked counts the batches. Eval
    mode uses running_mean and running_var. These buffers, weight and bias have shape (dim,).
    Without `affine` the layer has no weight and no bias. Without track_running_stats it has no
    buffers, and eval mode is like train mode.

    >>> layer = nn.BatchNorm1d(2)
    >>> layer(ndl.Tensor([[0.0, 10.0], [2.0, 30.0]])).numpy().round(2).tolist()
    [[-1.0, -1.0], [1.0, 1.0]]
    >>> layer.running_mean.numpy().round(2)
    array([0.1, 2. ], dtype=float32)
    """

    forms: ClassVar[dict[int, str]] = {2: "(N, dim)", 3: "(N, dim, L)"}

    def __init__(
        self,
        dim: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        device: DeviceLike | None = None,
        dtype: str = "float32",
        *,
        affine: bool = True,
        track_running_stats: bool = True,
    ) -> None:
        super().__init__(dim, eps, momentum, affine, track_running_stats, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        self._check(x)
        running = self.running_mean, self.running_var
        affine = self.weight, self.bias
        return F.batch_norm(x, *running, *affine, self.training, self._share(), self.eps)

    def _share(self) -> Any:
        """Return the weight of a batch in the running statistics. If momentum is None, count the
        batch."""
        if self.momentum is not None:
            return self.momentum
        seen = self.num_batches_tracked
        if seen is None or not self.training or state.recomputing:
            return 0.0
        seen.data = seen.detach() + 1
        share = 1.0 / seen.detach().astype("float64")  # a tensor, so a trace reads no value
        return share if self.running_mean is None else share.astype(self.running_mean.dtype)


class BatchNorm2d(BatchNorm1d):
    """Normalize each of the `dim` channels of (N, dim, H, W) over all other axes, then scale and
    shift. Otherwise like BatchNorm1d."""

    forms: ClassVar[dict[int, str]] = {4: "(N, dim, H, W)"}


class BatchNorm3d(BatchNorm1d):
    """Normalize each of the `dim` channels of (N, dim, D, H, W) over all other axes, then scale and
    shift. Otherwise like BatchNorm1d."""

    forms: ClassVar[dict[int, str]] = {5: "(N, dim, D, H, W)"}


class InstanceNorm1d(_PerChannel):
    """In each sample of (N, dim, L), normalize each of the `dim` channels to mean 0 and variance 1
    (Ulyanov et al. 2016).

    With `affine`, weight and bias (dim,) scale and shift. With track_running_stats, train mode
    updates the buffers running_mean and running_var with the samples' average statistics, as
    BatchNorm1d does, and eval mode uses the buffers. If momentum is None, the buffers never change.
    """

    forms: ClassVar[dict[int, str]] = {3: "(N, dim, L)"}

    def __init__(
        self,
        dim: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: DeviceLike | None = None,
        dtype: str = "float32",
    ) -> None:
        super().__init__(dim, eps, momentum, affine, track_running_stats, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        self._check(x)
        vectors = self.running_mean, self.running_var, self.weight, self.bias
        own = self.training or self.running_mean is None
        return F.instance_norm(x, *vectors, own, self.momentum or 0.0, self.eps)


class InstanceNorm2d(InstanceNorm1d):
    """In each sample of (N, dim, H, W), normalize each of the `dim` channels. Otherwise like
    InstanceNorm1d."""

    forms: ClassVar[dict[int, str]] = {4: "(N, dim, H, W)"}


class InstanceNorm3d(InstanceNorm1d):
    """In each sample of (N, dim, D, H, W), normalize each of the `dim` channels. Otherwise like
    InstanceNorm1d."""

    forms: ClassVar[dict[int, str]] = {5: "(N, dim, D, H, W)"}


class GroupNorm(Module):
    """Split the channels of each sample of (N, num_channels, ...) into `num_groups` groups of
    adjacent channels, normalize each group, then scale and shift each channel (Wu and He 2018).

    weight and bias have shape (num_channels,); without `affine` the layer has neither. Raises
    ValueError unless num_groups divides num_channels.
    """

    _parameter_names = frozenset({"weight", "bias"})

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        device: DeviceLike | None = None,
        dtype: str = "float32",
        *,
        affine: bool = True,
    ) -> None:
        super().__init__()
        counts("GroupNorm", num_groups=num_groups, num_channels=num_channels)
        if num_channels % num_groups:
            raise ValueError(f"GroupNorm: num_groups {num_groups} does not divide {num_channels}")
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = not_negative("GroupNorm", "eps", eps)
        where: dict[str, Any] = {"device": device, "dtype": dtype}
        self.weight = Parameter(init.ones(num_channels, **where)) if affine else None
        self.bias = Parameter(init.zeros(num_channels, **where)) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        if len(shape) < 2 or shape[1] != self.num_channels:
            raise ShapeError(f"GroupNorm: x has shape {shape}, not (N, {self.num_channels}, ...)")
        return F.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}"


class LocalResponseNorm(Module):
    """x / (k + alpha * m) ** beta, where m is the mean square of `size` neighbouring channels of x
    (N, channels, ...); channels beyond the ends count as 0 (Krizhevsky et al. 2012)."""

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        super().__init__()
        counts("LocalResponseNorm", size=size)
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def forward(self, x: Tensor) -> Tensor:
        return F.local_response_norm(x, self.size, self.alpha, self.beta, self.k)

    def extra_repr(self) -> str:
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"
