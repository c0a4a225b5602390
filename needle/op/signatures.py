"""Types in the signatures of op rules. Importing this module does not import TVM.

A type checker sees TVM's own classes; at run time their names are Any.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import numpy as np

from ..autograd.tensor import Tensor
from ..backend_ndarray import NDArray

if TYPE_CHECKING:
    from tvm.ir import Expr
    from tvm.te import Tensor as TeTensor
    from tvm.tirx import Stmt
else:
    Expr = TeTensor = Stmt = Any

__all__ = [
    "Array",
    "ArrayGradients",
    "Expr",
    "Extent",
    "Gradients",
    "HasShape",
    "Stmt",
    "TeNamespace",
    "TeTensor",
]

Array = TypeVar("Array", np.ndarray, NDArray)  # for helpers that `reference` and `compute` share

Extent: TypeAlias = "int | Expr"  # the extent of an axis, which may be symbolic in compiled code
# One entry per input: None if no gradient flows back, a tuple for an input that is a tuple.
Gradients: TypeAlias = tuple[Tensor | tuple[Tensor | None, ...] | None, ...]
ArrayGradients: TypeAlias = tuple[NDArray | tuple[NDArray | None, ...] | None, ...]


class HasShape(Protocol):
    """An array, a Tensor or a te.Tensor."""

    @property
    def shape(self) -> tuple[int, ...]: ...


class TeNamespace(Protocol):
    """The first argument of `Op.emit_te`: TVM's modules for tensor expressions."""

    te: ModuleType
    topi: ModuleType
    tirx: ModuleType

    def statements(self, body: Callable[[Any], None]) -> Stmt:
        """Return the loops that `body` writes with TVM's statement builder, for te.extern."""
        ...
