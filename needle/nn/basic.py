"""Linear layers, dropout, and layers that change shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from .. import init, ops
from ..autograd.tensor import Tensor
from ..backend_ndarray import DeviceLike
from ..backend_ndarray.arguments import counts, finite, fraction
from . import functional as F
from .functional.basic import with_bias
from .module import Module
from .parameter import Parameter
from .tying import Tying


class Identity(Module):
    """y = x. Arguments are accepted but have no effect, as in PyTorch."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, x: Any) -> Any:
        return x


class Linear(Tying):
    """y = x @ weight + bias over the last axis of x: (..., in_features) -> (..., out_features).

    weight (in_features, out_features) and bias (1, out_features) are drawn uniformly between -b and
    b = 1 / sqrt(in_features). For weight tying, assign the weight of an Embedding (out_features,
    in_features); the product then uses its transpose.

    >>> layer = nn.Linear(3, 4)
    >>> layer(ndl.zeros(2, 3)).shape, layer.weight.shape
    ((2, 4), (3, 4))
    >>> table = nn.Embedding(100, 3)
    >>> head = nn.Linear(3, 100, bias=False)
    >>> head.weight = table.weight
    >>> head(table(ndl.tensor([[5, 7]]))).shape, len(nn.ModuleList([table, head]).parameters())
    ((1, 2, 100), 1)
    """

    _parameter_names = frozenset({"weight", "bias"})
    _torch_axes: ClassVar = {"weight": (1, 0), "bias": (1,)}

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: DeviceLike | None = None,
        dtype: str = "float32",
    ) -> None:
        super().__init__()
        counts("Linear", in_features=in_features, out_features=out_features)
        self.in_features = in_features
        self.out_features = out_features
        where: dict[str, Any] = {"device": device, "dtype": dtype}
        self.weight = Parameter(self._drawn_weight(where))
        self.bias = Parameter(self._drawn_bias(where)) if bias else None

    def _drawn_weight(self, where: dict[str, Any]) -> Tensor:
        bound = self.in_features**-0.5
        return init.rand(self.in_features, self.out_features, low=-bound, high=bound, **where)

    def _drawn_bias(self, where: dict[str, Any]) -> Tensor:
        bound = self.in_features**-0.5
        return init.rand(1, self.out_features, low=-bound, high=bound, **where)

    def forward(self, x: Tensor) -> Tensor:
        y = ops.matmul(x, ops.transpose(self.weight) if self._is_transposed else self.weight)
        return with_bias(y, self.bias)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}"


class Bilinear(Module):
    """y = the sum over i and j of x1[..., i] * weight[i, j, :] * x2[..., j], plus bias:
    (..., in1_features), (..., in2_features) -> (..., out_features).

    weight (in1_features, in2_features, out_features) and bias (out_features,) are drawn uniformly
    between -b and b = 1 / sqrt(in1_features).
    """

    _parameter_names = frozenset({"weight", "bias"})
    _torch_axes: ClassVar = {"weight": (2, 0, 1)}

    def __init__(
        self,
        in1_features: int,
        in2_features: int,
        out_features: int,
        bias: bool = True,
        device: DeviceLike | None = None,
        dtype: str = "float32",
    ) -> None:
        super().__init__()
        counts(
            "Bilinear",
            in1_features=in1_features,
            in2_features=in2_features,
            out_features=out_features,
        )
        self.in1_features, self.in2_features = in1_features, in2_features
        self.out_features = out_features
        bound = in1_features**-0.5
        where: dict[str, Any] = {"low": -bound, "high": bound, "device": device, "dtype": dtype}
        self.weight = Parameter(init.rand(in1_features, in2_features, out_features, **where))
        self.bias = Parameter(init.rand(out_features, **where)) if bias else None

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return F.bilinear(x1, x2, self.weight, self.bias)

    def extra_repr(self) -> str:
        return (
            f"{self.in1_features}, {self.in2_features}, {self.out_features}, "
            f"bias={self.bias is not None}"
        )


class Flatten(Module):
    """Merge the axes from `start_dim` to `end_dim`, inclusive, into one: by default (B, ...) -> (B,
    product of the rest). Raises ShapeError for axes that x does not have.

    >>> nn.Flatten()(ndl.zeros(2, 3, 4)).shape
    (2, 12)
    """

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim = start_dim
        self.end_dim = end_dim

    def forward(self, x: Tensor) -> Tensor:
        return F.flatten(x, self.start_dim, self.end_dim)

    def extra_repr(self) -> str:
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


class Unflatten(Module):
    """Split the axis `dim` into axes with the extents `unflattened_size`, one of which may be -1.
    Raises ShapeError if the extents do not fit."""

    def __init__(self, dim: int, unflattened_size: Sequence[int]) -> None:
        super().__init__()
        if not isinstance(unflattened_size, Sequence) or isinstance(unflattened_size, str):
            raise TypeError(f"Unflatten: unflattened_size {unflattened_size!r} is not a sequence")
        self.dim = dim
        self.unflattened_size = tuple(unflattened_size)

    def forward(self, x: Tensor) -> Tensor:
        return F.unflatten(x, self.dim, self.unflattened_size)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"


class Dropout(Module):
    """In train mode, zero each element with probability `p` and scale the rest by 1 / (1 - p).
    `inplace` is accepted but has no effect.

    >>> layer = nn.Dropout(0.5)
    >>> sorted(set(layer(ndl.ones(100)).tolist())), layer.eval()(ndl.ones(2)).tolist()
    ([0.0, 2.0], [1.0, 1.0])
    """

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        self.p = fraction(type(self).__name__, "p", p)

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.p, self.training)

    def extra_repr(self) -> str:
        return f"p={self.p}"


class Dropout2d(Dropout):
    """Like Dropout with probability `p`, but zeros whole channels of x (N, channels, ...) (Tompson
    et al. 2014)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout2d(x, self.p, self.training)


class Dropout1d(Dropout):
    """Like Dropout with probability `p`, but zeros whole channels of x (N, channels, L) or
    (channels, L)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout1d(x, self.p, self.training)


class Dropout3d(Dropout):
    """Like Dropout with probability `p`, but zeros whole channels of x (N, channels, D, H, W) or
    (channels, D, H, W)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout3d(x, self.p, self.training)


class AlphaDropout(Dropout):
    """In train mode, set each element to SELU's least value with probability `p`, then scale and
    shift all elements so that a mean of 0 and a variance of 1 are preserved (Klambauer et al.
    2017)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.alpha_dropout(x, self.p, self.training)


class FeatureAlphaDropout(Dropout):
    """Like AlphaDropout with probability `p`, but drops whole channels of x (N, channels, ...)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.feature_alpha_dropout(x, self.p, self.training)


class ChannelShuffle(Module):
    """The channels of x (N, channels, ...) in the order 0, c, 2c ..., 1, c + 1 ..., where each of
    the `groups` has c channels (Zhang et al. 2018)."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        counts("ChannelShuffle", groups=groups)
        self.groups = groups

    def forward(self, x: Tensor) -> Tensor:
        return F.channel_shuffle(x, self.groups)

    def extra_repr(self) -> str:
        return f"groups={self.groups}"


class Unfold(Module):
    """Return the patches of images (N, C, H, W) as columns: (N, C * kh * kw, patches). The
    arguments are as in `needle.unfold`."""

    def __init__(
        self, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
    ) -> None:
        super().__init__()
        self.kernel_size, self.dilation = kernel_size, dilation
        self.padding, self.stride = padding, stride

    def forward(self, x: Tensor) -> Tensor:
        return F.unfold(x, self.kernel_size, self.dilation, self.padding, self.stride)

    def extra_repr(self) -> str:
        return (
            f"kernel_size={self.kernel_size}, dilation={self.dilation}, padding={self.padding}, "
            f"stride={self.stride}"
        )


class Fold(Unfold):
    """Return images (N, C, *output_size) assembled from patches (N, C * kh * kw, patches), which
    are summed where they overlap. The arguments are as in `needle.fold`."""

    def __init__(
        self,
        output_size: Any,
        kernel_size: Any,
        dilation: Any = 1,
        padding: Any = 0,
        stride: Any = 1,
    ) -> None:
        super().__init__(kernel_size, dilation, padding, stride)
        self.output_size = output_size

    def forward(self, x: Tensor) -> Tensor:
        window = self.kernel_size, self.dilation, self.padding, self.stride
        return F.fold(x, self.output_size, *window)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}, {super().extra_repr()}"


class PairwiseDistance(Module):
    """The p-norm of x1 - x2 + eps along the last axis. `keepdim` keeps that axis with extent 1."""

    def __init__(self, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> None:
        super().__init__()
        self.p = p if p == float("inf") else finite("PairwiseDistance", "p", p)
        self.eps = finite("PairwiseDistance", "eps", eps)
        self.keepdim = keepdim

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return F.pairwise_distance(x1, x2, self.p, self.eps, self.keepdim)

    def extra_repr(self) -> str:
        return f"p={self.p}, eps={self.eps}, keepdim={self.keepdim}"


class CosineSimilarity(Module):
    """sum(x1 * x2) / (max(|x1|, eps) * max(|x2|, eps)) along the axis `dim`."""

    def __init__(self, dim: int = 1, eps: float = 1e-8) -> None:
        super().__init__()
        self.dim = dim
        self.eps = finite("CosineSimilarity", "eps", eps)

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return F.cosine_similarity(x1, x2, self.dim, self.eps)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, eps={self.eps}"
