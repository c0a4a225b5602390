"""The specs of a trace's inputs, with the dims that the caller assigns to axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index as as_int
from typing import Any

from ..autograd.shapes import Spec
from ..errors import DimError
from ..sizes.dims import Dim, Expression, dims_of


def symbolic_specs(
    inputs: Sequence[tuple[str, Spec]], positions: Sequence[str], dims: Mapping[Any, Any]
) -> list[Spec]:
    """Return the specs of the named `inputs`, with the extents that `dims` assigns: {input: {axis:
    extent}}.

    A key of `dims` is an input's name or, if the input is a whole argument, the argument's
    position; `positions` are the names of the positional arguments. Raises DimError for an unknown
    input or axis, and for two dims with the same name.
    """
    if not isinstance(dims, Mapping):
        raise DimError(f"dims={dims!r}: must be a dict like {{'x': {{0: Dim('n', max=64)}}}}")
    known = [name for name, _ in inputs]
    axes_by_input: dict[str, Mapping[Any, Any]] = {}
    for key, axes in dims.items():
        name = positions[key] if type(key) is int and 0 <= key < len(positions) else key
        if name not in known:
            raise DimError(f"dims: {key!r} is not an input; they are {', '.join(known)}")
        if name in axes_by_input:
            raise DimError(f"dims: input {name!r} is given twice")
        if not isinstance(axes, Mapping):
            raise DimError(f"dims[{key!r}]={axes!r}: must be a dict from axes to dims")
        axes_by_input[name] = axes
    specs = [
        spec._replace(shape=_shape(name, spec, axes_by_input.get(name, {})))
        for name, spec in inputs
    ]
    _check_names(specs)
    return specs


def _shape(name: str, spec: Spec, axes: Mapping[Any, Any]) -> tuple[Any, ...]:
    shape: list[Any] = list(spec.shape)
    used = set()
    for axis, extent in axes.items():
        where = f"dims[{name!r}][{axis!r}]"
        try:
            position = as_int(axis)
        except TypeError:
            raise DimError(f"{where}: an axis is an int") from None
        if not -spec.ndim <= position < spec.ndim:
            raise DimError(f"{where}: the input is {spec}, which has no axis {position}")
        position %= spec.ndim
        if position in used:
            raise DimError(f"{where}: axis {position} is given twice")
        used.add(position)
        if not isinstance(extent, Expression):
            raise DimError(f"{where}={extent!r}: must be a Dim or an expression of dims")
        if extent.bounds[0] < 1:
            raise DimError(f"{where}={extent!r}: can be {extent.bounds[0]}, which is below 1")
        shape[position] = extent
    return tuple(shape)


def _check_names(specs: Sequence[Spec]) -> None:
    """Raise DimError if two dims have the same name."""
    known: dict[str, Dim] = {}
    for dim in sorted(dims_of(n for spec in specs for n in spec.shape), key=Dim.described):
        other = known.setdefault(dim.name, dim)
        if other is not dim:
            raise DimError(f"dims: two dims have one name: {other.described()}, {dim.described()}")
