"""Embeddings: rows of a table, looked up by index."""

from __future__ import annotations

from typing import Any, ClassVar

from .. import init
from ..autograd.tensor import Tensor
from ..backend_ndarray import DeviceLike
from ..backend_ndarray.arguments import counts
from ..errors import ShapeError
from ..ops import transpose
from ..ops._arguments import check_tensors
from . import functional as F
from .functional.basic import check_dense, check_norm, row_number
from .parameter import Parameter
from .tying import Tying


class Embedding(Tying):
    """Replace each index in x with that row of the weight: (...) -> (..., embedding_dim).

    weight (num_embeddings, embedding_dim) is drawn from the standard normal distribution. Raises
    TypeError unless x holds integers, and IndexError for an index without a row. The row
    `padding_idx` starts as zeros and gets no gradient. With max_norm, each row that is looked up
    and has a larger norm (of order `norm_type`) is scaled down to max_norm, as in
    `nn.functional.embedding`. Raises ValueError for `sparse`, because gradients are never sparse.
    For weight tying, assign the weight of a Linear (embedding_dim, num_embeddings); with a
    max_norm, a call then raises ValueError.

    >>> nn.Embedding(100, 8)(ndl.Tensor([[1, 2, 99]])).shape
    (1, 3, 8)
    """

    _torch_axes: ClassVar = {"weight": (0, 1)}

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        device: DeviceLike | None = None,
        dtype: str = "float32",
        *,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        sparse: bool = False,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        counts(name, num_embeddings=num_embeddings, embedding_dim=embedding_dim)
        check_dense(name, sparse)
        if max_norm is not None:
            check_norm(name, max_norm, norm_type)
        self.max_norm, self.norm_type = max_norm, norm_type
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.padding_idx = None
        weight = init.randn(num_embeddings, embedding_dim, device=device, dtype=dtype)
        if padding_idx is not None:
            self.padding_idx = row_number(name, padding_idx, num_embeddings)
            weight.realize_cached_data()[self.padding_idx] = 0
        self.weight = Parameter(weight)

    @classmethod
    def from_pretrained(
        cls, embeddings: Tensor, freeze: bool = True, padding_idx: int | None = None
    ) -> Embedding:
        """Return a layer whose weight has the values of `embeddings` (count, dim). The weight
        requires a gradient unless `freeze`; padding_idx is as in Embedding. Raises ShapeError
        unless `embeddings` has two axes."""
        check_tensors(f"{cls.__name__}.from_pretrained", embeddings=embeddings)
        if embeddings.ndim != 2:
            raise ShapeError(f"{cls.__name__}: embeddings {embeddings.shape} are not a matrix")
        where: dict[str, Any] = {"device": embeddings.device, "dtype": embeddings.dtype}
        rows, columns = embeddings.shape
        layer = cls(rows, columns, padding_idx=padding_idx, **where)
        layer.weight = Parameter(embeddings.detach().clone(), requires_grad=not freeze)
        return layer

    def forward(self, x: Tensor) -> Tensor:
        limits = self.max_norm, self.norm_type
        return F.embedding(x, self._table(), self.padding_idx, *limits)

    def _table(self) -> Tensor:
        """Return the weight (num_embeddings, embedding_dim)."""
        if not self._is_transposed:
            return self.weight
        if self.max_norm is not None:
            raise ValueError(
                f"{type(self).__name__}: max_norm scales rows of the layer's own weight, but this "
                "weight is a Linear's; tie the other way round: linear.weight = embedding.weight"
            )
        return transpose(self.weight)

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        limit = "" if self.max_norm is None else f", max_norm={self.max_norm}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}{limit}"


class EmbeddingBag(Embedding):
    """Look up the rows of the weight (num_embeddings, embedding_dim) for each bag of indices, and
    return their elementwise sum, mean or maximum (`mode`: "sum", "mean", "max").

    x is (bags, indices per bag), or (n,) with `offsets` (bags,), the first position of each bag,
    ascending from 0. The result is (bags, embedding_dim), with zeros for an empty bag. The row
    padding_idx does not count. per_sample_weights, of x's shape, multiply the rows of a sum.
    max_norm, norm_type and `sparse` are as in Embedding.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        mode: str = "mean",
        padding_idx: int | None = None,
        device: DeviceLike | None = None,
        dtype: str = "float32",
        *,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        sparse: bool = False,
    ) -> None:
        if mode not in ("sum", "mean", "max"):
            raise ValueError(f"EmbeddingBag: mode {mode!r} is not 'sum', 'mean' or 'max'")
        super().__init__(
            num_embeddings,
            embedding_dim,
            device,
            dtype,
            padding_idx=padding_idx,
            max_norm=max_norm,
            norm_type=norm_type,
            sparse=sparse,
        )
        self.mode = mode

    def forward(
        self,
        x: Tensor,
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> Tensor:
        settings = self.mode, per_sample_weights, self.padding_idx
        return F.embedding_bag(x, self._table(), offsets, *settings, self.max_norm, self.norm_type)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, mode={self.mode!r}"
