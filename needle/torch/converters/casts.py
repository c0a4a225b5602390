"""Converters of casts and copies."""

from __future__ import annotations

from typing import Any

from ... import ops
from ...autograd.tensor import Tensor
from ...backend_ndarray.dtypes import FLOATING
from ...conversion.values import Value, tensor
from ..operands import cast
from ..program import Node
from ..registry import converter


@converter("aten._to_copy", "aten.to", "aten.type_as", "prims.convert_element_type")
def to_dtype(node: Node, x: Value, *_: Any) -> Tensor:
    """Cast a tensor to another dtype. Negative floats are cast to uint8 through int64, as in
    PyTorch (`static_cast_with_inter_type` in c10/util/TypeCast.h)."""
    given = tensor(x)
    if node.dtype == "uint8" and given.dtype in FLOATING:
        given = ops.cast(given, "int64")
    return cast(given, node.dtype)
