"""The dims of a PyTorch model's input axes, given as needle's or torch's Dims."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..autograd.shapes import Spec
from ..common import tree
from ..errors import DimError
from ..sizes.dims import LARGEST, Dim, dims_of, size_of
from ..sizes.extents import sizes_in
from ..trace.input_specs import symbolic_specs

# The first size to try for a dim, if its bounds allow it. At sizes far above the minimum, fewer
# extents inside the model happen to be 1.
_TRACED = 6


@dataclass(frozen=True)
class Asked:
    """Inputs by name, with the extents that the caller assigned to their axes.

    A dim in `inferred` comes from a mark or a hint on one axis. The model may show that it equals
    the dim of another axis or, if it is in `optional`, that it is a fixed number.
    """

    inputs: list[tuple[str, Any]]
    shapes: list[tuple[Any, ...]]
    inferred: frozenset[Dim]
    optional: frozenset[Dim]

    @property
    def dims(self) -> list[Dim]:
        """All dims, sorted by name."""
        found = dims_of(n for shape in self.shapes for n in shape)
        return sorted(found, key=lambda dim: dim.name)

    def sizes(self) -> dict[str, int]:
        """Choose a size for each dim; the model is exported at these sizes. PyTorch treats a size
        of 1 as a constant and equal sizes as always equal, so the sizes differ and are above 1 if
        the bounds allow. An inferred dim keeps the example's size, unless that is 1.
        """
        given = [n for _, value in self.inputs for n in value.shape]
        sizes = dict[str, int]()
        for shape, (_, value) in zip(self.shapes, self.inputs, strict=True):
            for extent, n in zip(shape, value.shape, strict=True):
                if extent in self.inferred:
                    sizes[extent.name] = n if n > 1 else max(2, extent.min)
        for dim in self.dims:
            if dim.name not in sizes:
                every, count = dim.multiple_of, len(given) + len(sizes) + 2
                start = max(dim.min, min(max(_TRACED, 4 * dim.min + 3), dim.max) // every * every)
                free = [*range(start, dim.max + 1, every)[:count], *range(start, 1, -every)]
                taken = {1, *given, *sizes.values()}
                found = (n for n in free if n >= dim.min and n not in taken)
                sizes[dim.name] = next(found, dim.max)
        return sizes

    def example_sizes(self) -> dict[str, int]:
        """Return the size of each dim in the example inputs. Raises DimError if they do not fit the
        dims."""
        sizes = sizes_in(self.shapes, [value.shape for _, value in self.inputs])
        axes = [
            (f"input {name!r} has {n} along axis {axis}", extent, n)
            for (name, value), shape in zip(self.inputs, self.shapes, strict=True)
            for axis, (extent, n) in enumerate(zip(shape, value.shape, strict=True))
        ]
        for where, extent, n in axes:
            if isinstance(extent, Dim):
                if not extent.min <= n <= extent.max or n % extent.multiple_of:
                    raise DimError(
                        f"dims: the example does not fit: {where}, where {extent.described()}"
                    )
        for where, extent, n in axes:
            if size_of(extent, sizes) != n:
                raise DimError(
                    f"dims: the example does not fit: {where}, where {extent} is "
                    f"{size_of(extent, sizes)}"
                )
        return {dim.name: size for dim, size in sizes.items()}

    def resized(self, sizes: Mapping[str, int]) -> list[Any]:
        """Return the inputs at these `sizes` of the dims, filled with elements of the example
        inputs."""
        by_dim = {dim: sizes[dim.name] for dim in self.dims}
        return [
            _resized(value, [size_of(extent, by_dim) for extent in shape])
            for (_, value), shape in zip(self.inputs, self.shapes, strict=True)
        ]


def asked(names: Sequence[str], values: Sequence[Any], dims: Any) -> Asked:
    """Read the open sizes requested by `dims` and by marks on the argument tensors.

    `names` and `values` are the names and values of the model's arguments. `dims` is None or like
    `dynamic_shapes` of `torch.export`: a dict from argument names or positions to entries, or a
    sequence with one entry per argument. An entry is a dict from axes to dims, a sequence with a
    dim or None for each axis, or a container of entries nested like the argument. Inputs in
    containers may also be named as in the artifact ("xs_0"). Raises DimError for entries that do
    not fit the arguments.
    """
    import torch

    def is_tensor(value: Any) -> bool:
        return isinstance(value, torch.Tensor)

    inputs, entries = [], dict[str, dict[Any, Any]]()
    for key, entry in _entries(dims):
        name = names[key] if type(key) is int and 0 <= key < len(names) else key
        if name in entries:
            raise DimError(f"dims: input {name!r} is given twice")
        entries[name] = entry
    axes = dict[str, dict[Any, Any]]()
    inferred = dict[Dim, bool]()
    for argument, value in zip(names, values, strict=True):
        leaves = tree.flatten(value, argument, is_tensor)[1]
        inputs += leaves
        parts = dict(_parts(argument, value, entries.pop(argument, None), is_tensor))
        for name, each in leaves:
            entry = entries.pop(name, None)
            if entry is not None:
                parts[name] = entry
            axes[name] = _axes(name, each, parts.get(name), inferred)
    for name in entries:
        known = ", ".join(name for name, _ in inputs)
        raise DimError(f"dims: {name!r} is not an input; they are {known}")
    specs = [(name, Spec(tuple(each.shape), str(each.dtype))) for name, each in inputs]
    shapes = [spec.shape for spec in symbolic_specs(specs, (), axes)]
    shapes = [tuple(map(_number, shape)) for shape in shapes]
    _check_whole({extent for shape in shapes for extent in shape})
    return Asked(
        inputs,
        shapes,
        frozenset(inferred),
        frozenset(dim for dim, optional in inferred.items() if optional),
    )


def _check_whole(extents: set[Any]) -> None:
    """Raise DimError for a dim that is not the whole extent of any axis, because TVM reads sizes
    from axes."""
    for dim in sorted(dims_of(extents) - extents, key=lambda dim: dim.name):
        raise DimError(
            f"dims: {dim.name} must be the whole size of an axis of an input, as in "
            f"{{0: {dim.name}}}; it occurs only in expressions"
        )


def _number(extent: Any) -> Any:
    """Return an extent as a number if each of its dims allows only one size, else the extent."""
    found = dims_of([extent])
    alone = found and all(dim.min == dim.max for dim in found)
    return size_of(extent, {dim: dim.min for dim in found}) if alone else extent


def _entries(dims: Any) -> list[tuple[Any, Any]]:
    if isinstance(dims, Mapping):
        return [*dims.items()]
    if dims is None or isinstance(dims, (tuple, list)):
        return [*enumerate(dims or ())]
    raise DimError(f"dims={dims!r}: must be a dict like {{'x': {{0: Dim('n', max=64)}}}}")


def _parts(name: str, value: Any, entry: Any, is_tensor: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name and the entry of each tensor in an argument."""
    if entry is None:
        return
    if is_tensor(value):
        yield name, entry
        return
    pairs: list[tuple[Any, Any]] = []
    if isinstance(value, Mapping) and isinstance(entry, Mapping) and set(entry) <= set(value):
        pairs = [*entry.items()]
    elif isinstance(value, (tuple, list)) and isinstance(entry, (tuple, list)):
        pairs = [*enumerate(entry)] if len(entry) == len(value) else []
    if not pairs:
        raise DimError(f"dims[{name!r}]={entry!r}: must be nested like the argument")
    for key, part in pairs:
        yield from _parts(f"{name}_{key}", value[key], part, is_tensor)


def _axes(name: str, tensor: Any, entry: Any, inferred: dict[Dim, bool]) -> dict[Any, Any]:
    """Return the extents that an entry and marks assign to axes of a tensor, as needle's dims.
    Inferred dims are added to `inferred`."""
    if isinstance(entry, (tuple, list)):
        if len(entry) != tensor.ndim:
            raise DimError(
                f"dims[{name!r}] has {len(entry)} entries, but the input has {tensor.ndim} axes"
            )
        entry = {axis: dim for axis, dim in enumerate(entry) if dim is not None}
    if entry is not None and not isinstance(entry, Mapping):
        raise DimError(f"dims[{name!r}]={entry!r}: must be a dict from axes to dims")
    extents = {axis: dim for axis, dim in (entry or {}).items() if dim is not None}
    whole = {axis % tensor.ndim for axis in extents if type(axis) is int and tensor.ndim}
    ranges = {each.dim: each for each in getattr(tensor, "_dynamo_dynamic_range", ())}
    for axis in sorted(getattr(tensor, "_dynamo_dynamic_indices", ())):
        if axis not in whole:
            bounds = ranges.get(axis)
            how = f"torch._dynamo.mark_dynamic({name}, {axis}, max=...)"
            extents[axis] = _inferred(name, axis, bounds, how)
            inferred[extents[axis]] = False
    for axis, dim in [*extents.items()]:
        extent = _understood(name, axis, dim, tensor, inferred)
        if extent is None:
            del extents[axis]
        else:
            extents[axis] = extent
    return extents


def _understood(name: str, axis: Any, dim: Any, tensor: Any, inferred: dict[Dim, bool]) -> Any:
    """Return the extent that `dim` describes, or None for the example's size. A `dim` of an unknown
    type is returned unchanged."""
    from torch.export import dynamic_shapes as shapes

    where = f"dims[{name!r}][{axis!r}]"
    in_range = type(axis) is int and -tensor.ndim <= axis < tensor.ndim
    if type(dim) is int and in_range:
        if tensor.shape[axis] != dim:
            raise DimError(f"{where}={dim}: the example has {tensor.shape[axis]} there")
        return None
    if isinstance(dim, shapes._DimHint) and in_range:
        kind = dim.type.name
        if kind == "STATIC" or (kind == "AUTO" and tensor.shape[axis] == 1):
            return None  # torch.export also treats an axis of one element as a constant
        found = _inferred(
            name, axis % tensor.ndim, dim, f"{where}: torch.export.Dim.{kind}(max=...)"
        )
        inferred[found] = kind == "AUTO"
        return found
    if isinstance(dim, shapes._DerivedDim):
        return dim.fn(_own(dim.root, where))
    return _own(dim, where) if isinstance(dim, shapes.Dim) else dim


def _own(dim: Any, where: str) -> Dim:
    """Return needle's Dim for a named Dim of torch; its minimum is at least 1."""
    if not dim.max <= LARGEST:  # torch's infinity
        raise DimError(
            f"{where}: torch's Dim {dim.__name__!r} has no max: give it one, as in "
            f"Dim({dim.__name__!r}, max=64)"
        )
    try:
        return Dim(dim.__name__, min=max(1, int(dim.min)), max=int(dim.max))
    except ValueError as error:
        raise DimError(f"{where}: {error}") from None


def _inferred(name: str, axis: int, bounds: Any, how: str) -> Dim:
    """Return a new dim for one axis. `bounds` has `min` and `max`, which may be None."""
    least, most = getattr(bounds, "min", None), getattr(bounds, "max", None)
    if most is None:
        raise DimError(f"axis {axis} of input {name!r} has no largest size: give it, as in {how}")
    try:
        return Dim(f"{name}_{axis}", min=max(1, least or 1), max=most)
    except ValueError as error:
        raise DimError(f"axis {axis} of input {name!r}: {error}") from None


def _resized(tensor: Any, shape: Sequence[int]) -> Any:
    """Return a tensor of this shape with elements of `tensor`; floats are scaled by factors from
    0.5 to 1.5."""
    import torch

    if tuple(tensor.shape) == tuple(shape):
        return tensor.detach().clone()
    generator, found = torch.Generator().manual_seed(0), tensor.detach()
    for axis, size in enumerate(shape):
        if size != tensor.shape[axis]:
            places = torch.randint(tensor.shape[axis], (size,), generator=generator)
            found = found.index_select(axis, places)
    if not found.is_floating_point():
        return found
    factors = torch.rand(found.shape, generator=generator, dtype=torch.float64) + 0.5
    return (found * factors).to(found.dtype)
