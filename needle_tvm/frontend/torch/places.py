"""PyTorch's gathers, scatters and sorts.

They never touch memory outside a tensor: an index out of range is taken for the nearest valid one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from needle.backend_ndarray.dtypes import is_floating
from needle.ops import _te
from needle_tvm._tvm.names import TE_NAMESPACE, Constant, relax, te, tirx
from needle_tvm.frontend.torch.nodes import (
    alike,
    arguments,
    broadcast,
    extents_of,
    result_dtype,
    shape_of,
)

_op = relax.op


def sort(node: Any, importer: Any) -> Any:
    dim, descending = arguments(node, dim=-1, descending=False)
    return _ordered(node, importer, dim, descending, None)


def sort_stable(node: Any, importer: Any) -> Any:
    _, dim, descending = arguments(node, stable=None, dim=-1, descending=False)
    return _ordered(node, importer, dim, descending, None)


def argsort(node: Any, importer: Any) -> Any:
    dim, descending = arguments(node, dim=-1, descending=False)
    return _ordered(node, importer, dim, descending, None)[1]


def topk(node: Any, importer: Any) -> Any:
    count, dim, largest, _ = arguments(node, k=1, dim=-1, largest=True, sorted=True)
    return _ordered(node, importer, dim, largest, count)


def _ordered(node: Any, importer: Any, dim: int, descending: bool, count: int | None) -> Any:
    """All, or the first `count`, values and indices in order along an axis, NaN after the largest.

    TVM's comparison of floats leaves the order undefined if there is a NaN, and always for
    bfloat16. So integers in the same order are sorted instead.
    """
    x, builder = importer.env[node.args[0]], importer.block_builder
    keys, emit = x, builder.emit
    if str(x.ty.dtype) not in ("int32", "int64"):
        keys = emit(builder.call_te(_sort_keys, x, primfunc_name_hint="sort_keys"))
    if not extents_of(x):  # a 0-d tensor is in order
        return emit(relax.Tuple([x, relax.const(0, "int64")]))
    places = emit(_op.argsort(keys, dim, bool(descending), "int64"))
    if count is not None:
        places = emit(_op.strided_slice(places, [dim], [0], [count], assume_inbound=True))
    return emit(relax.Tuple([emit(_op.gather_elements(x, places, axis=dim)), places]))


def _sort_keys(x: te.Tensor) -> te.Tensor:
    """Integers in the order of x: the bits of floats, reversed below 0 so that -0 equals 0."""
    dtype = str(x.dtype)
    if not is_floating(dtype):
        return _te.cast(TE_NAMESPACE, x, "int32")
    wide = "float64" if dtype == "float64" else "float32"
    integer = wide.replace("float", "int")
    most = tirx.max_value(integer)

    def key(value: Any) -> Any:
        bits = tirx.reinterpret(integer, value)
        turned = (bits ^ most) + tirx.const(1, integer)
        return tirx.Select(tirx.isnan(value), most, tirx.Select(bits < 0, turned, bits))

    return _te.elementwise(TE_NAMESPACE, key, _te.cast(TE_NAMESPACE, x, wide))


def slice_scatter(node: Any, importer: Any) -> Any:
    """x with a slice of an axis replaced. TVM's operator reads behind the end of a replacement that
    is shorter than the axis."""
    source, dim, *bounds = arguments(node, source=None, dim=0, start=None, end=None, step=1)
    x, source = importer.env[node.args[0]], importer.env[source]
    axis = dim % len(extents_of(x))
    if extents_of(source)[axis] == 0:
        return x
    return importer.block_builder.emit_te(
        _slice_scattered, x, source, axis, *bounds, primfunc_name_hint="scattered"
    )


def _slice_scattered(
    x: te.Tensor, source: te.Tensor, axis: int, start: Any, end: Any, step: int
) -> te.Tensor:
    first, last = _bounds(x.shape[axis], start, end)

    def element(*place: Any) -> Any:
        i = place[axis]
        inside = tirx.all(i >= first, i < last, tirx.floormod(i - first, step) == 0)
        taken = source(*place[:axis], tirx.floordiv(i - first, step), *place[axis + 1 :])
        return tirx.if_then_else(inside, taken, x(*place))

    return te.compute(x.shape, element, name="scattered")


def _bounds(extent: Any, start: Any, end: Any) -> tuple[Any, Any]:
    """Where a slice of an axis begins and ends; the extent may be symbolic, the slice not."""
    if isinstance(extent, tirx.IntImm):
        return slice(start, end).indices(int(extent))[:2]
    given = (0 if start is None else start), (extent if end is None else end)
    first, last = (te.max(extent + n, 0) if isinstance(n, int) and n < 0 else n for n in given)
    return first, last


def index(node: Any, importer: Any) -> Any:
    """x[i, :, j] with integer tensors that broadcast, and whole axes. The axes of the tensors'
    shape come where the tensors stood, or first if an axis stood between them."""
    x, emit = importer.env[node.args[0]], importer.block_builder.emit
    shape, given = list(extents_of(x)), list(node.args[1])
    chosen = [axis for axis, each in enumerate(given) if each is not None]
    tensors = [importer.env[given[axis]] for axis in chosen]
    if any("int" not in str(tensor.ty.dtype) for tensor in tensors):
        raise ValueError("an index of booleans, whose result has a shape that is not static")
    if len(chosen) == 1:
        return emit(_op.take(x, tensors[0], axis=chosen[0]))
    rest = [axis for axis in range(len(shape)) if axis not in chosen]
    places = broadcast(*map(extents_of, tensors))
    flat = None
    for axis, tensor in zip(chosen, tensors, strict=True):
        extent = importer.number(shape[axis])
        at = _counted(emit, tensor, extent)
        flat = at if flat is None else emit(_op.add(emit(_op.multiply(flat, extent)), at))
    assert flat is not None
    flat = emit(_op.broadcast_to(flat, places))
    turned = emit(_op.permute_dims(x, [*chosen, *rest]))
    rows = importer.product(shape[axis] for axis in chosen)
    turned = emit(_op.reshape(turned, (rows, *(shape[axis] for axis in rest))))
    out = emit(_op.take(turned, flat, axis=0))
    if chosen != list(range(chosen[0], chosen[-1] + 1)) or chosen[0] == 0:
        return out
    count, before = len(places), chosen[0]
    order = [
        *range(count, count + before),
        *range(count),
        *range(count + before, count + len(rest)),
    ]
    return emit(_op.permute_dims(out, order))


def _nearest(emit: Callable[[Any], Any], places: Any, extent: Any) -> Any:
    """Indices clamped to an axis, whose extent is a 0-d tensor, so that nothing outside is
    written."""
    low, one = relax.const(0, "int64"), relax.const(1, "int64")
    high = (
        relax.const(int(extent.value.numpy()) - 1, "int64")
        if isinstance(extent, Constant)
        else emit(_op.subtract(extent, one))
    )
    return emit(_op.minimum(emit(_op.maximum(emit(_op.astype(places, "int64")), low)), high))


def _counted(emit: Callable[[Any], Any], places: Any, extent: Any) -> Any:
    """Like `_nearest`, with negative indices counting from the end."""
    places = emit(_op.astype(places, "int64"))
    negative = emit(_op.less(places, relax.const(0, "int64")))
    turned = emit(_op.add(places, extent))
    return _nearest(emit, emit(_op.where(negative, turned, places)), extent)


def gather(node: Any, importer: Any) -> Any:
    """Elements along an axis at indices that may not count from its end."""
    axis, places = arguments(node, dim=0, index=None)[:2]
    x, emit = importer.env[node.args[0]], importer.block_builder.emit
    shape, places = extents_of(x), importer.env[places]
    if not shape:
        return emit(_op.broadcast_to(x, extents_of(places)))
    at = _nearest(emit, places, importer.number(shape[axis]))
    return emit(_op.gather_elements(x, at, axis=axis))


def sliced(node: Any, importer: Any) -> Any:
    """x[:, start:end:step]. Where the extents before and after are numbers, by TVM's front end."""
    x, emit = importer.env[node.args[0]], importer.block_builder.emit
    axis, start, _, step = arguments(node, dim=0, start=None, end=None, step=1)
    shape, result = extents_of(x), importer.shape(node.meta["val"])
    extent, count = shape[axis], result[axis]
    if isinstance(extent, int) and isinstance(count, int):
        return importer._slice(node)
    if alike(count, extent):
        return x
    begin = 0 if start is None else start
    if importer.least(begin) < 0:  # PyTorch's guards say that it is inside the axis
        begin = importer.added(extent, begin)
    end = importer.added(begin, importer.product((importer.added(count, -1), step)), 1)
    strides = [step]
    return emit(_op.strided_slice(x, [axis], [begin], [end], strides, assume_inbound=True))


def viewed(node: Any, importer: Any) -> Any:
    """x with another shape. TVM's front end cannot compare a number with an extent of dims."""
    x, shape = importer.env[node.args[0]], importer.shape(node.meta["val"])
    same = alike(extents_of(x), shape)
    return x if same else importer.block_builder.emit(_op.reshape(x, shape))


def repeated(node: Any, importer: Any) -> Any:
    """x repeated along each axis, with new axes in front. TVM's operator takes numbers alone, so
    numbers of times that depend on sizes are broadcast."""
    x, emit = importer.env[node.args[0]], importer.block_builder.emit
    (times,) = arguments(node, repeats=())
    if all(isinstance(count, int) for count in times):
        return emit(_op.tile(x, times))
    shape = extents_of(x)
    shape = (*[1] * (len(times) - len(shape)), *shape)
    apart: list[Any] = []
    wide: list[Any] = []
    for count, extent in zip(times, shape, strict=True):
        both = not alike(count, 1) and not alike(extent, 1)
        apart += [1, extent] if both else [extent]
        wide += [count, extent] if both else [extent if alike(count, 1) else count]
    out = emit(_op.broadcast_to(emit(_op.reshape(x, apart)), wide))
    return emit(_op.reshape(out, importer.shape(node.meta["val"])))


def index_put(node: Any, importer: Any) -> Any:
    """x[i, :, j] = values, or += values, with integer tensors that broadcast, and whole axes.
    Values for the same position are written, or added, one after another."""
    given, values, add = arguments(node, indices=(), values=None, accumulate=False)[:3]
    x, values, emit = importer.env[node.args[0]], importer.env[values], importer.block_builder.emit
    shape = shape_of(x)
    chosen = [axis for axis, each in enumerate(given) if each is not None]
    tensors = [importer.env[given[axis]] for axis in chosen]
    if any("int" not in str(tensor.ty.dtype) for tensor in tensors):
        if len(given) > 1 or add or math.prod(shape_of(values)) != 1:
            raise ValueError("an index of booleans, whose number of places is not static")
        (mask,), value = tensors, emit(_op.reshape(values, ()))
        ones = [1] * (len(shape) - len(shape_of(mask)))
        return emit(_op.where(emit(_op.reshape(mask, (*shape_of(mask), *ones))), value, x))
    rest = [axis for axis in range(len(shape)) if axis not in chosen]
    places = np.broadcast_shapes(*map(shape_of, tensors))
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    within = np.zeros([shape[axis] for axis in rest], "int64")
    for i, axis in enumerate(rest):
        within += np.indices(within.shape)[i] * strides[axis]
    flat = relax.const(within.reshape(-1), "int64")
    for axis, tensor in zip(chosen, tensors, strict=True):
        at = emit(_op.broadcast_to(_counted(emit, tensor, importer.number(shape[axis])), places))
        at = emit(_op.multiply(at, relax.const(strides[axis], "int64")))
        flat = emit(_op.add(flat, emit(_op.reshape(at, (-1, 1)))))
    # The axes of the tensors come first here; in PyTorch only if another axis stands between them.
    before = chosen[0] if chosen == list(range(chosen[0], chosen[-1] + 1)) else 0
    chosen_shape = [shape[axis] for axis in rest]
    values = emit(
        _op.broadcast_to(values, (*chosen_shape[:before], *places, *chosen_shape[before:]))
    )
    end = before + len(places)
    order = [*range(before, end), *range(before), *range(end, len(shape_of(values)))]
    if order != sorted(order):
        values = emit(_op.permute_dims(values, order))
    return _written(emit, x, flat, values, "add" if add else "update")


def _written(emit: Callable[[Any], Any], x: Any, flat: Any, source: Any, reduction: str) -> Any:
    """x with the elements of `source` written at flat indices."""
    operands = [emit(_op.reshape(each, (-1,))) for each in (x, flat, source)]
    return emit(_op.reshape(emit(_op.scatter_elements(*operands, 0, reduction)), shape_of(x)))


def bucketize(node: Any, importer: Any) -> Any:
    """The index of the first boundary that is not below each element; NaN is above all."""
    x, boundaries = (importer.env[each] for each in node.args[:2])
    options = {"out_int32": False, "right": False} | dict(node.kwargs)
    emit = importer.block_builder.emit
    out = emit(_op.bucketize(x, boundaries, options["out_int32"], options["right"]))
    if not is_floating(str(x.ty.dtype)):
        return out
    last = relax.const(shape_of(boundaries)[0], str(out.ty.dtype))
    return emit(_op.where(emit(_op.isnan(x)), last, out))


def scatter(reduction: str) -> Callable[[Any, Any], Any]:
    """A converter that writes elements of a tensor, or a number, at indices along an axis."""

    def convert(node: Any, importer: Any) -> Any:
        x, flat, source = _flat(node, importer)
        return _written(importer.block_builder.emit, x, flat, source, reduction)

    return convert


def scatter_reduce(node: Any, importer: Any) -> Any:
    """Elements of a tensor combined with those at indices along an axis."""
    (x, flat, source), emit = _flat(node, importer), importer.block_builder.emit
    options = {"reduce": "sum", "include_self": True}
    options |= dict(zip(("reduce", "include_self"), node.args[4:], strict=False))
    options |= dict(node.kwargs)
    how, dtype = str(options["reduce"]), str(x.ty.dtype)
    if dtype == "bool":  # any of them, or all
        how, dtype = {"sum": "amax", "prod": "amin"}.get(how, how), "int8"
        x, source = (emit(_op.astype(each, dtype)) for each in (x, source))
    total = _reduced(emit, x, flat, source, how, bool(options["include_self"]))
    return emit(_op.astype(total, result_dtype(node)))


def _reduced(
    emit: Callable[[Any], Any], x: Any, flat: Any, source: Any, how: str, own: bool
) -> Any:
    """x with the elements of `source` combined at flat indices, and with its own if `own`."""
    dtype = str(x.ty.dtype)
    reduction, alone = {
        "sum": ("add", 0),
        "mean": ("add", 0),
        "prod": ("mul", 1),
        "amax": ("max", _least(dtype)),
        "amin": ("min", _most(dtype)),
    }[how]
    if not own:
        x = _written(emit, x, flat, _filled(flat, alone, dtype), "update")
    total = _written(emit, x, flat, source, reduction)
    if how != "mean":
        return total
    count = relax.const(np.ones(shape_of(x)), dtype)
    if not own:
        count = _written(emit, count, flat, _filled(flat, 0, dtype), "update")
    count = _written(emit, count, flat, _filled(flat, 1, dtype), "add")
    if not own:  # where nothing was written, the element itself
        count = emit(_op.maximum(count, relax.const(1, dtype)))
    divide = _op.divide if is_floating(dtype) else _op.floor_divide
    return emit(divide(total, count))


def _least(dtype: str) -> Any:
    return -math.inf if is_floating(dtype) else np.iinfo(dtype).min


def _most(dtype: str) -> Any:
    return math.inf if is_floating(dtype) else np.iinfo(dtype).max


def _filled(like: Any, value: Any, dtype: str) -> Any:
    return relax.const(np.full(shape_of(like), value), dtype)


def _flat(node: Any, importer: Any) -> tuple[Any, Any, Any]:
    """x, the flat indices that an operator writes to, and as many elements to write there.

    TVM's operator needs as many indices as `x` has elements along the other axes, so all axes are
    flattened to one here.
    """
    names = ("x", "axis", "places", "source")
    given = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
    x, places = importer.env[given["x"]], importer.env[given["places"]]
    shape, chosen, emit = shape_of(x), shape_of(places), importer.block_builder.emit
    if not shape:  # a 0-d tensor is one element
        shape, chosen = (1,), (1,)
    axis, dtype = given["axis"] % len(shape), str(x.ty.dtype)
    source = importer.env.get(given["source"])
    if source is None:
        source = relax.const(np.full(chosen, given["source"]), dtype)
    elif shape_of(source) not in (chosen, ()):
        axes, starts = list(range(len(chosen))), [0] * len(chosen)
        source = emit(_op.strided_slice(source, axes, starts, list(chosen)))
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    others = sum(
        at * (stride if i != axis else 0)
        for i, (at, stride) in enumerate(zip(np.indices(chosen), strides, strict=True))
    )
    at = _nearest(emit, places, importer.number(shape[axis]))
    at = emit(_op.reshape(at, chosen))
    flat = emit(_op.multiply(at, relax.const(strides[axis], "int64")))
    return x, emit(_op.add(flat, relax.const(np.asarray(others), "int64"))), source
