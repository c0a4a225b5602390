"""Convert extents that depend on dims to TVM's expressions and back.

A dim becomes an int64 variable, which all inputs share. `axis_dims` makes sure that it is the size
of an input axis, from which TVM's virtual machine reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from needle.autograd import Node
from needle.sizes.dims import Dim, Expression, dims_of
from needle.sizes.extents import replaced, same
from needle_tvm._tvm.names import tirx, tvm
from needle_tvm.tir.functions import simplified

_BACK = {
    tirx.Add: lambda a, b: a + b,
    tirx.Sub: lambda a, b: a - b,
    tirx.Mul: lambda a, b: a * b,
    tirx.FloorDiv: lambda a, b: a // b,
    tirx.FloorMod: lambda a, b: a % b,
}


class Extents:
    """The variables of dims, and expressions of them."""

    def __init__(self, variables: Mapping[Dim, Any]) -> None:
        self._variables = dict(variables)
        self._dims = {variable: dim for dim, variable in self._variables.items()}

    @classmethod
    def of(cls, dims: Iterable[Dim]) -> Extents:
        """Return new variables for dims."""
        return cls({dim: tirx.Var(dim.name, "int64") for dim in dims})

    def used_by(self, node: Node) -> dict[Dim, Any]:
        """Return the variables of the dims in a node's shapes and in its op."""
        found: list[Expression] = []
        specs = [*node.specs, *(spec for each in node.input_nodes for spec in each.specs)]
        replaced((node.op, tuple(specs)), found.append)
        used = dims_of(found)
        return {dim: variable for dim, variable in self._variables.items() if dim in used}

    def __bool__(self) -> bool:
        return bool(self._variables)

    @property
    def attributes(self) -> dict[str, Any]:
        """The function attributes that give the variables' bounds to TVM's analyses."""
        if not self:
            return {}
        return {
            "tir_var_lower_bound": {dim.name: dim.min for dim in self._variables},
            "tir_var_upper_bound": {dim.name: dim.max for dim in self._variables},
        }

    def expressed(self, value: Any) -> Any:
        """Return `value` (a shape, an op) with needle's expressions replaced by TVM's."""
        if not self:
            return value
        return replaced(value, self._spelt)

    def _spelt(self, extent: Expression) -> Any:
        """Return an extent in the form that passes also use for their results."""
        return simplified(extent.built(self._variables.__getitem__, tirx.floordiv))

    def are(self, shape: Sequence[Any], wanted: Sequence[Any]) -> bool:
        """Return whether TVM's shape equals a spec's, however their expressions are written."""
        return len(shape) == len(wanted) and all(
            same(self.understood(a), b) for a, b in zip(shape, wanted, strict=True)
        )

    def understood(self, extent: Any) -> Any:
        """Return TVM's extent as an int or as needle's expression; None if it is neither."""
        if isinstance(extent, int):
            return extent
        if isinstance(extent, tirx.IntImm):
            return int(extent)
        if isinstance(extent, tvm.ir.Var):
            return self._dims.get(extent)
        if isinstance(extent, tirx.Cast):
            return self.understood(extent.value)
        rule = _BACK.get(type(extent))
        if rule is None:
            return None
        parts = [self.understood(part) for part in (extent.a, extent.b)]
        return None if None in parts else rule(*parts)
