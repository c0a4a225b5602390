"""Embedding."""

from __future__ import annotations

from .. import init, ops
from ..backend_ndarray import Device
from ..backend_ndarray.arguments import counts
from ..backend_ndarray.dtypes import INTEGER
from ..tensor import Tensor
from .module import Module, Parameter


class Embedding(Module):
    """Replace each number of x by that row of the weight: (...) -> (..., embedding_dim).

    weight (num_embeddings, embedding_dim) is drawn from the standard normal distribution. x holds
    whole numbers of any dtype but bool; IndexError for one without a row.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        device: Device | None = None,
        dtype: str = "float32",
    ) -> None:
        super().__init__()
        counts("Embedding", num_embeddings=num_embeddings, embedding_dim=embedding_dim)
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.weight = Parameter(
            init.randn(num_embeddings, embedding_dim, device=device, dtype=dtype)
        )

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype == "bool":
            raise TypeError("Embedding: x is bool, not a number of a row")
        index = x if x.dtype in INTEGER else ops.cast(x, "int64")
        return ops.embedding(index, self.weight)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}"
