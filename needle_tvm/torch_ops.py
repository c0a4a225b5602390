"""PyTorch's operators that are translated here, not taken apart first or left to TVM's front end.

- `scaled_dot_product_attention` would arrive as a "safe" softmax of scores in memory, with the
  scale in two halves. Here it is product, scale, mask, softmax and product, which becomes one
  kernel. The safe softmax gives 0 where a plain one gives NaN: in rows of a mask that are -inf
  throughout. These are set to 0 at the end, unless the mask is known to have none.
- `linear` and `matmul` would arrive as products of a batch of copies of the weights where the input
  is a permutation. Here the rows of the input are multiplied, before they are permuted.
- Convolutions and products of a batch would be of float32 whatever they are given, norms without a
  scale of their own would lack one, and what is indexed by several tensors would have its axes in
  another order than PyTorch.
- `amax` and `amin` the front end does not know, and of `grid_sample` it has another idea.

`DECOMPOSITIONS` writes what it does not know either by operators that it does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from needle.backend_ndarray.dtypes import HALVES, INTEGER, is_floating
from needle.ops import _te
from needle_tvm._tvm import TE_NAMESPACE, relax, static_shape, te, tirx

_op = relax.op


def attention(node: Any, importer: Any, constant: Callable[[Any], Any]) -> Any:
    """softmax(q k^T * scale + mask) v of (..., T, D), (..., S, D) and (..., S, E).

    `constant` gives the value of a node that depends on no input and no parameter, else None.
    """
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
    if float(given.get("dropout_p") or 0.0) != 0.0:
        raise ValueError("scaled_dot_product_attention with dropout")
    emit = importer.block_builder.emit
    q, k, v = (importer.env[given[name]] for name in names[:3])
    if given.get("enable_gqa"):
        k, v = (_repeated(emit, operand, _static(q)[-3]) for operand in (k, v))
    (*lead, queries, features), keys = _static(q), _static(k)[-2]
    result, dtype = (*lead, queries, _static(v)[-1]), str(q.ty.dtype)
    mask, empty = None, None
    if given.get("is_causal"):  # the first key is seen in every row
        seen = np.tril(np.ones((queries, keys), bool))
        mask = relax.const(np.where(seen, 0.0, -np.inf), dtype)
    elif given.get("attn_mask") is not None:
        value = constant(given["attn_mask"])
        mask = (
            importer.env[given["attn_mask"]]
            if value is None
            else relax.const(value, value.dtype.name)
        )
        if len(lead) > 2 and len(_static(mask)) > 3:
            mask = emit(_op.broadcast_to(mask, (*lead, *_static(mask)[-2:])))
            mask = emit(_op.reshape(mask, (-1, *_static(mask)[-3:])))
        mask, empty = _mask(emit, mask, value, dtype)
    if all(list(_static(operand)[:-2]) == lead for operand in (q, k, v)):
        # Heads of a batch: four axes, whatever there were.
        heads = lead[-1] if lead else 1
        q, k, v = (
            emit(_op.reshape(each, (math.prod(lead) // heads, heads, *_static(each)[-2:])))
            if len(lead) != 2
            else each
            for each in (q, k, v)
        )
    rank, scale = len(_static(k)), given.get("scale")
    turned = emit(_op.permute_dims(k, [*range(rank - 2), rank - 1, rank - 2]))
    scale = 1 / math.sqrt(features) if scale is None else float(scale)
    scores = emit(_op.multiply(emit(_op.matmul(q, turned)), relax.const(scale, dtype)))
    if mask is not None:
        scores = emit(_op.add(scores, mask))
    out = emit(_op.matmul(emit(_op.nn.softmax(scores, axis=-1)), v))
    if empty is not None:
        out = emit(_op.where(empty, relax.const(0.0, dtype), out))
    return out if len(lead) == 2 else emit(_op.reshape(out, result))


def _repeated(emit: Callable[[Any], Any], x: Any, heads: int) -> Any:
    """(..., G, S, D) with each group's heads beside each other, `heads` in all."""
    *lead, groups, length, features = _static(x)
    split = emit(_op.reshape(x, (*lead, groups, 1, length, features)))
    wide = emit(_op.broadcast_to(split, (*lead, groups, heads // groups, length, features)))
    return emit(_op.reshape(wide, (*lead, heads, length, features)))


def _mask(emit: Callable[[Any], Any], mask: Any, value: Any, dtype: str) -> tuple[Any, Any]:
    """What to add to the scores, and which rows see no key at all: None where there is none.

    `value` is that of the mask where it is known.
    """
    minus_infinity = relax.const(-np.inf, dtype)
    if str(mask.ty.dtype) == "bool":
        mask = emit(_op.where(mask, relax.const(0.0, dtype), minus_infinity))
    if value is not None:
        unseen = ~value if value.dtype == bool else value == -np.inf
        if not unseen.all(-1).any():
            return mask, None
    unseen = emit(_op.astype(emit(_op.equal(mask, minus_infinity)), "int8"))
    return mask, emit(_op.astype(emit(_op.min(unseen, axis=-1, keepdims=True)), "bool"))


def linear(node: Any, importer: Any) -> Any:
    """x (..., K) times the transpose of a weight (N, K), plus a bias (N,) or none."""
    x, weight, *bias = (importer.env[each] for each in node.args if each is not None)
    transposed = importer.block_builder.emit(_op.permute_dims(weight, [1, 0]))
    return _rows_product(importer.block_builder, x, transposed, bias[0] if bias else None)


def matmul(node: Any, importer: Any) -> Any:
    """NumPy's product of two tensors of any rank."""
    x, y = (importer.env[each] for each in node.args)
    if len(_static(y)) == 2 and len(_static(x)) > 2:
        return _rows_product(importer.block_builder, x, y, None)
    emit, dtype = importer.block_builder.emit, str(x.ty.dtype)
    if dtype not in HALVES:
        return emit(_op.matmul(x, y))
    return emit(_op.astype(emit(_op.matmul(x, y, out_dtype="float32")), dtype))


def _rows_product(builder: Any, x: Any, weights: Any, bias: Any) -> Any:
    """x (..., K) @ weights (K, N) + bias as a product of rows, permuted as `x` is."""
    emit, rank, order = builder.emit, len(_static(x)), None
    source = builder.lookup_binding(x) if isinstance(x, relax.Var) else None
    if isinstance(source, relax.Call) and str(source.op.name) == "relax.permute_dims":
        axes = source.attrs.axes
        order = [int(axis) % rank for axis in (reversed(range(rank)) if axes is None else axes)]
        if order[-1] == rank - 1:
            x = source.args[0]
        else:
            order = None
    *lead, k = _static(x)
    rows = x if rank == 2 else emit(_op.reshape(x, (math.prod(lead), k)))
    dtype = str(x.ty.dtype)
    if dtype in HALVES:  # summed in float32, and rounded once
        y = emit(_op.matmul(rows, weights, out_dtype="float32"))
        bias = None if bias is None else emit(_op.astype(bias, "float32"))
    else:
        y = emit(_op.matmul(rows, weights))
    if bias is not None:
        y = emit(_op.add(y, bias))
    if dtype in HALVES:
        y = emit(_op.astype(y, dtype))
    if rank != 2:
        y = emit(_op.reshape(y, (*lead, _static(weights)[-1])))
    return y if order is None else emit(_op.permute_dims(y, order))


def _extreme(reduction: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    def convert(node: Any, importer: Any) -> Any:
        return importer.block_builder.emit(reduction(*_along(node, importer)))

    return convert


def _arguments(node: Any, **defaults: Any) -> list[Any]:
    """Of an operator's arguments those after the first, by name."""
    return list(
        {**defaults, **dict(zip(defaults, node.args[1:], strict=False)), **node.kwargs}.values()
    )


def _sort(node: Any, importer: Any) -> Any:
    dim, descending = _arguments(node, dim=-1, descending=False)
    return _ordered(node, importer, dim, descending, None)


def _sort_stable(node: Any, importer: Any) -> Any:
    _, dim, descending = _arguments(node, stable=None, dim=-1, descending=False)
    return _ordered(node, importer, dim, descending, None)


def _argsort(node: Any, importer: Any) -> Any:
    dim, descending = _arguments(node, dim=-1, descending=False)
    return _ordered(node, importer, dim, descending, None)[1]


def _topk(node: Any, importer: Any) -> Any:
    count, dim, largest, _ = _arguments(node, k=1, dim=-1, largest=True, sorted=True)
    return _ordered(node, importer, dim, largest, count)


def _ordered(node: Any, importer: Any, dim: int, descending: bool, count: int | None) -> Any:
    """Values and places in order along an axis, NaN after the largest: all, or the first `count`.

    TVM's comparisons of floats leave an order undefined where there is a NaN, and of bfloat16
    altogether. Integers in the same order are sorted instead.
    """
    x, builder = importer.env[node.args[0]], importer.block_builder
    keys, emit = x, builder.emit
    if str(x.ty.dtype) not in INTEGER:
        keys = emit(builder.call_te(_sort_keys, x, primfunc_name_hint="sort_keys"))
    if not _static(x):  # a number is in order
        return emit(relax.Tuple([x, relax.const(0, "int64")]))
    places = emit(_op.argsort(keys, dim, bool(descending), "int64"))
    if count is not None:
        places = emit(_op.strided_slice(places, [dim], [0], [count]))
    return emit(relax.Tuple([emit(_op.gather_elements(x, places, axis=dim)), places]))


def _sort_keys(x: te.Tensor) -> te.Tensor:
    """Integers in the order of x: the bits of floats, turned round where they are below 0."""
    dtype = str(x.dtype)
    if not is_floating(dtype):
        return _te.cast(TE_NAMESPACE, x, "int32")
    wide = "float64" if dtype == "float64" else "float32"
    integer = wide.replace("float", "int")
    most = tirx.max_value(integer)

    def key(value: Any) -> Any:
        bits = tirx.reinterpret(integer, value + tirx.const(0, wide))  # no -0
        return tirx.Select(tirx.isnan(value), most, tirx.Select(bits < 0, bits ^ most, bits))

    return _te.elementwise(TE_NAMESPACE, key, _te.cast(TE_NAMESPACE, x, wide))


def grid_sample(node: Any, importer: Any) -> Any:
    """(B, C, H, W) at the places (B, h, w, 2) of a grid; the front end leaves the grid as it is,
    where TVM's operator takes (B, 2, h, w)."""
    x, grid = (importer.env[each] for each in node.args[:2])
    method, padding, align = (*node.args[2:5], 0, 0, False)[:3]
    emit = importer.block_builder.emit
    turned = emit(_op.permute_dims(grid, [0, 3, 1, 2]))
    return emit(
        _op.image.grid_sample(
            x,
            turned,
            method=("bilinear", "nearest", "bicubic")[method],
            padding_mode=("zeros", "border", "reflection")[padding],
            align_corners=bool(align),
        )
    )


def convolution(node: Any, importer: Any) -> Any:
    """Of one, two or three dimensions, in the dtype of what it is given."""
    given = [*node.args, *[None] * (9 - len(node.args))]
    x, weight = (importer.env[each] for each in given[:2])
    stride, padding, dilation, transposed, added, groups = given[3:]
    dims, emit = len(_static(x)) - 2, importer.block_builder.emit
    places = ["W", "HW", "DHW"][dims - 1]
    options = {
        "strides": stride,
        "padding": padding,
        "dilation": dilation,
        "groups": groups,
        "data_layout": f"NC{places}",
        "kernel_layout": f"{'IO' if transposed else 'OI'}{places}",
        "out_dtype": str(x.ty.dtype),
    }
    if transposed:
        options["output_padding"] = added
    kind = getattr(_op.nn, f"conv{dims}d{'_transpose' if transposed else ''}")
    y = emit(kind(x, weight, **options))
    if given[2] is None:
        return y
    bias = emit(_op.reshape(importer.env[given[2]], (1, -1, *[1] * dims)))
    return emit(_op.add(y, bias))


def _matmul_of(names: tuple[str, ...]) -> Callable[[Any, Any], Any]:
    """beta * added + alpha * (x @ y), where there is something added."""

    def convert(node: Any, importer: Any) -> Any:
        given = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
        emit = importer.block_builder.emit
        out = emit(_op.matmul(importer.env[given["x"]], importer.env[given["y"]]))
        if "added" not in given:
            return out
        dtype = str(out.ty.dtype)
        added = importer.env[given["added"]]
        if given.get("alpha", 1) != 1:
            out = emit(_op.multiply(out, relax.const(given["alpha"], dtype)))
        if given.get("beta", 1) != 1:
            added = emit(_op.multiply(added, relax.const(given["beta"], dtype)))
        return emit(_op.add(added, out))

    return convert


def _filled(importer: Any, node: Any, value: float, shape: tuple[int, ...], dtype: str) -> Any:
    """A node's value; where there is none, a constant."""
    return importer.env[node] if node is not None else relax.const(np.full(shape, value), dtype)


def layer_norm(node: Any, importer: Any) -> Any:
    """Over the last axes."""
    x, shape = importer.env[node.args[0]], tuple(node.args[1])
    weight, bias = (
        _filled(importer, each, value, shape, str(x.ty.dtype))
        for each, value in zip(node.args[2:4], (1.0, 0.0), strict=True)
    )
    axes, rank = len(shape), len(_static(x))
    return importer.block_builder.emit(
        _op.nn.layer_norm(x, weight, bias, list(range(rank - axes, rank)), float(node.args[4]))
    )


def group_norm(node: Any, importer: Any) -> Any:
    """Over the channels of a group and all places."""
    x, weight, bias, _, channels, _, groups, epsilon = node.args
    x = importer.env[x]
    shape, dtype = _static(x), str(x.ty.dtype)
    weight, bias = (
        _filled(importer, each, value, (channels,), dtype)
        for each, value in ((weight, 1.0), (bias, 0.0))
    )
    rows = (shape[0], groups, math.prod(shape[1:]) // groups)
    return _normalized(importer, x, rows, weight, bias, float(epsilon))


def _normalized(
    importer: Any, x: Any, rows: tuple[int, ...], weight: Any, bias: Any, epsilon: float
) -> Any:
    """Each row of `x` reshaped normalized, and then each channel scaled: TVM's own norms of groups
    and instances take the square of the mean from the mean of the squares, and float32 alone."""
    emit, shape, dtype = importer.block_builder.emit, _static(x), str(x.ty.dtype)
    one, zero = (relax.const(np.full(rows[-1:], value), dtype) for value in (1.0, 0.0))
    out = emit(_op.nn.layer_norm(emit(_op.reshape(x, rows)), one, zero, [-1], epsilon))
    out = emit(_op.reshape(out, shape))
    weight, bias = (
        emit(_op.reshape(each, (-1, *[1] * (len(shape) - 2)))) for each in (weight, bias)
    )
    return emit(_op.add(emit(_op.multiply(out, weight)), bias))


def batch_norm(node: Any, importer: Any) -> Any:
    """By the statistics that are given."""
    x, weight, bias, mean, variance, _, epsilon = node.args
    x = importer.env[x]
    channels, dtype = (_static(x)[1],), str(x.ty.dtype)
    operands = [
        _filled(importer, each, value, channels, dtype)
        for each, value in ((weight, 1.0), (bias, 0.0), (mean, 0.0), (variance, 1.0))
    ]
    emit = importer.block_builder.emit
    result = emit(_op.nn.batch_norm(x, *operands, axis=1, epsilon=float(epsilon), training=False))
    return emit(relax.TupleGetItem(result, 0))


def own_statistics(node: Any, importer: Any) -> Any:
    """Batch norm by the statistics of what is given; of one batch, it is instance norm."""
    x, weight, bias, *_, epsilon = node.args
    x, emit = importer.env[x], importer.block_builder.emit
    shape, dtype = _static(x), str(x.ty.dtype)
    operands = [
        _filled(importer, each, value, shape[1:2], dtype)
        for each, value in ((weight, 1.0), (bias, 0.0))
    ]
    order = [1, 0, *range(2, len(shape))]
    turned = emit(_op.permute_dims(x, order))
    ones, zeros = (relax.const(np.full(shape[:1], value), dtype) for value in (1.0, 0.0))
    rows = (shape[1], math.prod(shape) // shape[1])
    turned = _normalized(importer, turned, rows, ones, zeros, float(epsilon))
    out = emit(_op.permute_dims(turned, order))
    scale, shift = (emit(_op.reshape(each, (-1, *[1] * (len(shape) - 2)))) for each in operands)
    return emit(_op.add(emit(_op.multiply(out, scale)), shift))


def _of_two(
    rule: Callable[[Any, Any], Any], whole: Callable[[Any, Any], Any], rounds: bool = True
) -> Any:
    """A converter of two operands, either of which may be a number: `rule` says what becomes of
    elements that are floats, in float32 if they are halves, and `whole` of tensors of integers.
    PyTorch rounds a number beside halves to these first, but for some operators."""

    def convert(node: Any, importer: Any) -> Any:
        dtype, builder = _dtype(node), importer.block_builder
        wide = "float32" if dtype in HALVES else dtype
        x, y = (
            builder.emit(_op.astype(importer.env[each], wide))
            if each in importer.env
            else builder.emit(_op.astype(relax.const(each, dtype if rounds else wide), wide))
            for each in node.args[:2]
        )
        if not is_floating(dtype):
            return builder.emit(whole(x, y))
        name = str(rule.__name__).strip("_")
        out = builder.emit_te(_broadcast(rule), x, y, primfunc_name_hint=name)
        return builder.emit(_op.astype(out, dtype))

    return convert


def _broadcast(rule: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A rule for two elements as one for two tensors."""
    return partial(_te.broadcast, TE_NAMESPACE, lambda x, y: rule(tirx.convert(x), tirx.convert(y)))


def _fmod(x: Any, y: Any) -> Any:
    """The C library's, exact whatever the quotient is: TVM's own rounds that."""
    dtype = str(x.ty)
    return tirx.call_pure_extern(dtype, "fmod" if dtype == "float64" else "fmodf", x, y)


def _remainder(x: Any, y: Any) -> Any:
    """With the sign of y, exact where the quotient is large."""
    rest = _fmod(x, y)
    return tirx.Select(_of_other_sign(rest, y), rest + y, rest)


def _of_other_sign(x: Any, y: Any) -> Any:
    """Whether one of two is below 0, and the other is not."""
    zero = tirx.const(0, str(x.ty))
    return tirx.any(tirx.all(x < zero, y > zero), tirx.all(x > zero, y < zero))


def _floor_divided(x: Any, y: Any) -> Any:
    """The whole number that `_remainder` leaves, and not one less where the quotient rounds up."""
    zero, one = (tirx.const(value, str(x.ty)) for value in (0, 1))
    rest = _fmod(x, y)
    quotient = (x - rest) / y
    quotient = tirx.Select(_of_other_sign(rest, y), quotient - one, quotient)
    floor = tirx.floor(quotient)
    floor = tirx.Select(quotient - floor > tirx.const(0.5, str(x.ty)), floor + one, floor)
    return tirx.Select(y == zero, x / y, floor)


def _hypot(x: Any, y: Any) -> Any:
    """By the ratio to the larger, whose square neither overflows nor vanishes."""
    zero, one, infinity = (tirx.const(value, str(x.ty)) for value in (0, 1, math.inf))
    x, y = tirx.abs(x), tirx.abs(y)
    large = tirx.Select(x < y, y, x)
    ratio = tirx.Select(x < y, x, y) / tirx.Select(large == zero, one, large)
    length = large * tirx.sqrt(one + ratio * ratio)
    return tirx.Select(tirx.any(x == infinity, y == infinity), infinity, length)


def _whole_power(x: Any, y: Any) -> Any:
    """x ** y of integers."""
    rule = _broadcast(_power_of_integers)
    return relax.BlockBuilder.current().call_te(rule, x, y, primfunc_name_hint="power")


def _power_of_integers(x: Any, y: Any) -> Any:
    dtype = str(x.ty)
    one = tirx.const(1, dtype)
    result, square = one, x
    for bit in range(6):  # a larger power than 63 is none but of 0, 1, -1 and even numbers
        taken = ((y >> tirx.const(bit, dtype)) & one) == one
        result = tirx.Select(taken, result * square, result)
        square = square * square
    if "uint" in dtype:
        return result
    inverse = tirx.Select(tirx.any(x == one, x == -one), result, tirx.const(0, dtype))
    return tirx.Select(y < tirx.const(0, dtype), inverse, result)


def index(node: Any, importer: Any) -> Any:
    """x[i, :, j]: by tensors of integers that broadcast, and whole axes. The axes of what is chosen
    stand where the tensors stood, and first where an axis stood between them."""
    x, emit = importer.env[node.args[0]], importer.block_builder.emit
    shape, given = list(_static(x)), list(node.args[1])
    chosen = [axis for axis, each in enumerate(given) if each is not None]
    tensors = [importer.env[given[axis]] for axis in chosen]
    if any("int" not in str(tensor.ty.dtype) for tensor in tensors):
        raise ValueError("an index of booleans, whose result has a shape that is not static")
    if len(chosen) == 1:
        return emit(_op.take(x, tensors[0], axis=chosen[0]))
    rest = [axis for axis in range(len(shape)) if axis not in chosen]
    places = np.broadcast_shapes(*map(_static, tensors))
    flat = None
    for axis, tensor in zip(chosen, tensors, strict=True):
        at, extent = _counted(emit, tensor, shape[axis]), relax.const(shape[axis], "int64")
        flat = at if flat is None else emit(_op.add(emit(_op.multiply(flat, extent)), at))
    assert flat is not None
    flat = emit(_op.broadcast_to(flat, places))
    turned = emit(_op.permute_dims(x, [*chosen, *rest]))
    rows = math.prod(shape[axis] for axis in chosen)
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


def _nearest(emit: Callable[[Any], Any], places: Any, extent: int) -> Any:
    """Places along an axis, those beyond its ends at the ends: nothing is written elsewhere."""
    low, high = relax.const(0, "int64"), relax.const(extent - 1, "int64")
    return emit(_op.minimum(emit(_op.maximum(emit(_op.astype(places, "int64")), low)), high))


def _counted(emit: Callable[[Any], Any], places: Any, extent: int) -> Any:
    """As `_nearest`, where negative places count from the end."""
    places = emit(_op.astype(places, "int64"))
    negative = emit(_op.less(places, relax.const(0, "int64")))
    turned = emit(_op.add(places, relax.const(extent, "int64")))
    return _nearest(emit, emit(_op.where(negative, turned, places)), extent)


def _gather(node: Any, importer: Any) -> Any:
    """Elements along an axis, whose places do not count from its end."""
    axis, places = _arguments(node, dim=0, index=None)[:2]
    x, emit = importer.env[node.args[0]], importer.block_builder.emit
    shape, places = _static(x), importer.env[places]
    if not shape:
        return emit(_op.broadcast_to(x, _static(places)))
    return emit(_op.gather_elements(x, _nearest(emit, places, shape[axis]), axis=axis))


def index_put(node: Any, importer: Any) -> Any:
    """x[i, :, j] = values, or += values: by tensors of integers that broadcast, and whole axes.
    Values at the same place are written, or added, one after another."""
    given, values, add = _arguments(node, indices=(), values=None, accumulate=False)[:3]
    x, values, emit = importer.env[node.args[0]], importer.env[values], importer.block_builder.emit
    shape = _static(x)
    chosen = [axis for axis, each in enumerate(given) if each is not None]
    tensors = [importer.env[given[axis]] for axis in chosen]
    if any("int" not in str(tensor.ty.dtype) for tensor in tensors):
        if len(given) > 1 or add or math.prod(_static(values)) != 1:
            raise ValueError("an index of booleans, whose number of places is not static")
        (mask,), value = tensors, emit(_op.reshape(values, ()))
        ones = [1] * (len(shape) - len(_static(mask)))
        return emit(_op.where(emit(_op.reshape(mask, (*_static(mask), *ones))), value, x))
    rest = [axis for axis in range(len(shape)) if axis not in chosen]
    places = np.broadcast_shapes(*map(_static, tensors))
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    within = np.zeros([shape[axis] for axis in rest], "int64")
    for i, axis in enumerate(rest):
        within += np.indices(within.shape)[i] * strides[axis]
    flat = relax.const(within.reshape(-1), "int64")
    for axis, tensor in zip(chosen, tensors, strict=True):
        at = emit(_op.broadcast_to(_counted(emit, tensor, shape[axis]), places))
        at = emit(_op.multiply(at, relax.const(strides[axis], "int64")))
        flat = emit(_op.add(flat, emit(_op.reshape(at, (-1, 1)))))
    # Of the axes of what is chosen, those of the tensors come first here, which in PyTorch they
    # do only where another axis stands between.
    before = chosen[0] if chosen == list(range(chosen[0], chosen[-1] + 1)) else 0
    chosen_shape = [shape[axis] for axis in rest]
    values = emit(
        _op.broadcast_to(values, (*chosen_shape[:before], *places, *chosen_shape[before:]))
    )
    end = before + len(places)
    order = [*range(before, end), *range(before), *range(end, len(_static(values)))]
    if order != sorted(order):
        values = emit(_op.permute_dims(values, order))
    return _written(emit, x, flat, values, "add" if add else "update")


def _written(emit: Callable[[Any], Any], x: Any, flat: Any, source: Any, reduction: str) -> Any:
    """x with elements of `source` at places of all of it in one row."""
    operands = [emit(_op.reshape(each, (-1,))) for each in (x, flat, source)]
    return emit(_op.reshape(emit(_op.scatter_elements(*operands, 0, reduction)), _static(x)))


def _along(node: Any, importer: Any) -> tuple[Any, list[int] | None, bool]:
    """What a reduction takes, the axes it goes along (None: all), and whether these are kept. A
    number has none, whatever is asked for."""
    given = dict(zip(("x", "dim", "keepdim"), node.args, strict=False)) | dict(node.kwargs)
    x, axes = importer.env[given["x"]], given.get("dim")
    axes = [axes] if isinstance(axes, int) else list(axes or []) or None
    return x, axes if _static(x) else None, bool(given.get("keepdim", False))


def _dtype(node: Any) -> str:
    """The dtype PyTorch gives the result."""
    return _dtype_of(node.meta["val"])


def _dtype_of(tensor: Any) -> str:
    return str(tensor.dtype).partition(".")[2]


def any_(node: Any, importer: Any) -> Any:
    """Whether anything is not 0, along some axes or all."""
    (x, axes, keepdim), emit = _along(node, importer), importer.block_builder.emit
    if str(x.ty.dtype) != "bool":
        x = emit(_op.not_equal(x, relax.const(0, str(x.ty.dtype))))
    found = emit(_op.max(emit(_op.astype(x, "int8")), axes, keepdim))
    return emit(_op.astype(found, _dtype(node)))


def prod(node: Any, importer: Any) -> Any:
    """The product along an axis."""
    (x, axes, keepdim), emit = _along(node, importer), importer.block_builder.emit
    x = emit(_op.astype(x, _dtype(node)))
    return emit(_op.prod(x, axes, keepdims=keepdim)) if _static(x) else x


def _cumulative(operation: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    """Sums, or products, of all elements up to each, in the dtype of the result; of halves in
    float32, rounded once."""

    def convert(node: Any, importer: Any) -> Any:
        x, dtype, emit = importer.env[node.args[0]], _dtype(node), importer.block_builder.emit
        (axis,) = _arguments(node, dim=0)[:1]
        x = emit(_op.astype(x, "float32" if dtype in HALVES else dtype))
        out = emit(operation(x, axis)) if _static(x) else x
        return emit(_op.astype(out, dtype))

    return convert


def _elementwise(rule: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """A function of each element, which is a float."""

    def convert(node: Any, importer: Any) -> Any:
        name = str(rule.__name__).strip("_")
        return importer.block_builder.emit_te(
            lambda x: te.compute(x.shape, lambda *at: rule(x(*at))),
            importer.env[node.args[0]],
            primfunc_name_hint=name,
        )

    return convert


def _number(like: Any, value: float) -> Any:
    return tirx.const(value, str(like.ty))


def _series(x: Any, factors: list[float]) -> Any:
    """factors[0] + factors[1] * x + factors[2] * x * x + ..."""
    total = _number(x, factors[-1])
    for factor in reversed(factors[:-1]):
        total = total * x + _number(x, factor)
    return total


def _expm1(x: Any) -> Any:
    """exp(x) - 1, near 0 by the series, of which nothing cancels."""
    terms = 17 if str(x.ty) == "float64" else 9
    near = x * _series(x, [1 / math.factorial(i + 1) for i in range(terms)])
    return tirx.Select(tirx.abs(x) < _number(x, 0.5), near, tirx.exp(x) - _number(x, 1))


def _log1p(x: Any) -> Any:
    """log(1 + x), near 0 as twice the inverse hyperbolic tangent of x / (2 + x), by its series."""
    terms = 14 if str(x.ty) == "float64" else 6
    ratio = x / (_number(x, 2) + x)
    near = ratio * _series(ratio * ratio, [2 / (2 * i + 1) for i in range(terms)])
    return tirx.Select(tirx.abs(x) < _number(x, 0.4), near, tirx.log(_number(x, 1) + x))


def _odd(x: Any, of_positive: Callable[[Any], Any]) -> Any:
    y = of_positive(tirx.abs(x))
    return tirx.Select(x < _number(x, 0), -y, y)


def _asinh(x: Any) -> Any:
    one, large = _number(x, 1), _number(x, 1e6)

    def of(x: Any) -> Any:
        square = x * x
        near = _log1p(x + square / (one + tirx.sqrt(one + square)))
        return tirx.Select(x > large, tirx.log(x) + _number(x, math.log(2)), near)

    return _odd(x, of)


def _acosh(x: Any) -> Any:
    above = x - _number(x, 1)
    near = _log1p(above + tirx.sqrt(above) * tirx.sqrt(above + _number(x, 2)))
    far = tirx.log(x) + _number(x, math.log(2))
    return tirx.Select(x > _number(x, 1e6), far, near)


def _atanh(x: Any) -> Any:
    return _odd(x, lambda x: _number(x, 0.5) * _log1p(_number(x, 2) * x / (_number(x, 1) - x)))


def _tanh(x: Any) -> Any:
    """By expm1, which keeps all digits near 0."""

    def of(x: Any) -> Any:
        below = _expm1(_number(x, -2) * x)
        return -below / (below + _number(x, 2))

    return _odd(x, of)


def tanh(node: Any, importer: Any) -> Any:
    """TVM's of float64 loses its digits near 0."""
    x = importer.env[node.args[0]]
    if str(x.ty.dtype) == "float64":
        return _elementwise(_tanh)(node, importer)
    return importer.block_builder.emit(_op.tanh(x))


def _pairs(value: Any, dims: int) -> list[int]:
    """An option of a window, for each of its dimensions."""
    return [value] * dims if isinstance(value, int) else list(value) * (dims // len(value))


def max_pool(node: Any, importer: Any) -> Any:
    """The largest of each window, and its place where that is asked for."""
    x, emit = importer.env[node.args[0]], importer.block_builder.emit
    values, places = node.meta["val"]
    dims = 3 if "3d" in str(node.target) else 2
    kernel, stride, padding, dilation, ceil = _arguments(
        node, kernel=1, stride=(), padding=0, dilation=1, ceil=False
    )
    kernel, stride, padding, dilation = (
        _pairs(each, dims) for each in (kernel, stride or kernel, padding, dilation)
    )
    shape, extents = _static(x), _static(x)[-dims:]
    rows = emit(_op.reshape(x, (-1, 1, *extents)))
    pool = getattr(_op.nn, f"max_pool{dims}d")
    out = emit(pool(rows, kernel, stride, padding, dilation, ceil))
    out = emit(_op.astype(emit(_op.reshape(out, tuple(values.shape))), _dtype_of(values)))
    asked = any(user.args[1] == 1 for user in node.users)
    if not asked:
        return emit(relax.Tuple([out, relax.const(0, "int64")]))
    seen = _window_places(extents, values.shape[-dims:], kernel, stride, padding, dilation)
    flat = relax.const(seen.reshape(-1), "int64")
    rows = emit(_op.reshape(x, (math.prod(shape[:-dims]), math.prod(extents))))
    windows = emit(_op.reshape(emit(_op.take(rows, flat, axis=1)), (-1, *seen.shape)))
    at = emit(_op.astype(emit(_op.argmax(windows, -1)), "int64"))
    first = relax.const(np.arange(len(seen)) * seen.shape[1], "int64")
    chosen = emit(_op.take(flat, emit(_op.add(at, first)), axis=0))
    return emit(relax.Tuple([out, emit(_op.reshape(chosen, tuple(places.shape)))]))


def _window_places(
    extents: Any, counts: Any, kernel: Any, stride: Any, padding: Any, dilation: Any
) -> np.ndarray[Any, Any]:
    """What the windows of a pool see: (windows, elements), each a place in the row of all. One
    beyond the edge stands for another of the same window."""
    dims = len(extents)
    axes = []
    for i, extent in enumerate(extents):
        starts = np.arange(counts[i])[:, None] * stride[i] - padding[i]
        at = starts + np.arange(kernel[i]) * dilation[i]
        inside = np.where((at >= 0) & (at < extent), at, -1)
        axes.append(np.where(inside < 0, inside.max(1, keepdims=True), inside))
    seen = np.zeros((1,) * 2 * dims, "int64")
    for i, each in enumerate(axes):
        shape = [1] * 2 * dims
        shape[i], shape[dims + i] = each.shape
        seen = seen * extents[i] + each.reshape(shape)
    return seen.reshape(math.prod(counts), -1)


def full(node: Any, importer: Any) -> Any:
    """One number everywhere, which may be no finite one."""
    shape, dtype = tuple(node.meta["val"].shape), _dtype(node)
    value = node.args[1]
    value = importer.env[value] if value in importer.env else relax.const(value, dtype)
    emit = importer.block_builder.emit
    return emit(_op.full(shape, value, dtype))


def arange(node: Any, importer: Any) -> Any:
    """Numbers from the first up, or down, to the last; TVM's operator only counts up."""
    start, end, step = (*node.args, 1)[:3]
    (count,), dtype = node.meta["val"].shape, _dtype(node)
    if isinstance(count, int) and (step <= 0 or "int" not in dtype):
        return relax.const(start + np.arange(count) * step, dtype)
    return importer.block_builder.emit(_op.arange(start, end, step, dtype))


def bucketize(node: Any, importer: Any) -> Any:
    """The first boundary that is not below each element; NaN is above all."""
    x, boundaries = (importer.env[each] for each in node.args[:2])
    options = {"out_int32": False, "right": False} | dict(node.kwargs)
    emit = importer.block_builder.emit
    out = emit(_op.bucketize(x, boundaries, options["out_int32"], options["right"]))
    if not is_floating(str(x.ty.dtype)):
        return out
    last = relax.const(_static(boundaries)[0], str(out.ty.dtype))
    return emit(_op.where(emit(_op.isnan(x)), last, out))


def _split(node: Any, importer: Any) -> Any:
    """Parts along an axis; one that is all of it is no split, which TVM's passes cannot take."""
    x, emit = importer.env[node.args[0]], importer.block_builder.emit
    sizes, axis = _arguments(node, sizes=1, dim=0)
    extent = _static(x)[axis]
    if isinstance(sizes, int):
        ends = list(range(sizes, extent, sizes)) if sizes else []
    else:
        ends = [sum(sizes[: i + 1]) for i in range(len(sizes) - 1)]
    return emit(_op.split(x, ends, axis) if ends else relax.Tuple([x]))


def _scatter(reduction: str) -> Callable[[Any, Any], Any]:
    """Elements of a tensor, or a number, put where indices along an axis say. TVM's own takes
    indices that are as many as `x` along the other axes: here the elements of all axes are in
    one."""

    def convert(node: Any, importer: Any) -> Any:
        names = ("x", "axis", "places", "source")
        given = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
        x, places = importer.env[given["x"]], importer.env[given["places"]]
        shape, chosen, emit = _static(x), _static(places), importer.block_builder.emit
        if not shape:  # a number is one element
            shape, chosen = (1,), (1,)
        axis, dtype = given["axis"] % len(shape), str(x.ty.dtype)
        source = importer.env.get(given["source"])
        if source is None:
            source = relax.const(np.full(chosen, given["source"]), dtype)
        elif _static(source) not in (chosen, ()):
            axes, starts = list(range(len(chosen))), [0] * len(chosen)
            source = emit(_op.strided_slice(source, axes, starts, list(chosen)))
        strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
        others = sum(
            at * (stride if i != axis else 0)
            for i, (at, stride) in enumerate(zip(np.indices(chosen), strides, strict=True))
        )
        at = emit(_op.reshape(_nearest(emit, places, shape[axis]), chosen))
        flat = emit(_op.multiply(at, relax.const(strides[axis], "int64")))
        flat = emit(_op.add(flat, relax.const(np.asarray(others), "int64")))
        return _written(emit, x, flat, source, reduction)

    return convert


def nearest(node: Any, importer: Any) -> Any:
    """The nearest element below each place; TVM's operator rounds other places than PyTorch."""
    x, sizes, scales = (*node.args, None, None)[:3]
    out, shape = importer.env[x], _static(importer.env[x])
    for i, extent in enumerate(shape[2:]):
        size = int(extent * scales[i]) if sizes is None else sizes[i]
        ratio = np.float32(extent / size if scales is None else 1 / scales[i])
        places = np.floor(np.arange(size, dtype=np.float32) * ratio).clip(0, extent - 1)
        index = relax.const(places.astype("int64"), "int64")
        out = importer.block_builder.emit(_op.take(out, index, axis=i + 2))
    return out


def antialiased(node: Any, importer: Any) -> Any:
    """Refused: TVM's operator does not smooth."""
    raise ValueError(f"{node.target}: TVM has no resize with antialias=True")


def _static(expr: Any) -> tuple[int, ...]:
    shape = static_shape(expr)
    if shape is None:
        raise ValueError("a tensor whose shape is not static")
    return shape


def _constants(program: Any) -> Callable[[Any], Any]:
    """A function that evaluates a node of the program, None where it depends on an argument."""
    import torch

    signature, values = program.graph_signature, {}
    for name, source in signature.inputs_to_buffers.items():
        values[name] = program.constants.get(source, program.state_dict.get(source))
    for name, source in signature.inputs_to_lifted_tensor_constants.items():
        values[name] = program.constants.get(source)

    def evaluate(node: Any) -> Any:
        if node.name not in values:
            values[node.name] = compute(node)
        return values[node.name]

    def compute(node: Any) -> Any:
        if not isinstance(node.target, torch._ops.OpOverload):
            return None
        if torch.Tag.nondeterministic_seeded in node.target.tags:
            return None
        known = {each: evaluate(each) for each in node.all_input_nodes}
        if any(value is None for value in known.values()):
            return None
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), known.__getitem__)
        result = node.target(*args, **kwargs)
        return result if isinstance(result, torch.Tensor) else None

    def constant(node: Any) -> Any:
        value = evaluate(node)
        return None if value is None else value.detach().cpu().numpy()

    return constant


# By PyTorch's names, as the front end knows them: each takes a node and an importer.
CONVERTERS: dict[str, Callable[..., Any]] = {
    "scaled_dot_product_attention.default": attention,
    "linear.default": linear,
    "matmul.default": matmul,
    "grid_sampler_2d.default": grid_sample,
    "convolution.default": convolution,
    "mm.default": _matmul_of(("x", "y")),
    "bmm.default": _matmul_of(("x", "y")),
    "addmm.default": _matmul_of(("added", "x", "y")),
    "baddbmm.default": _matmul_of(("added", "x", "y")),
    "native_layer_norm.default": layer_norm,
    "native_group_norm.default": group_norm,
    "_native_batch_norm_legit_no_training.default": batch_norm,
    "_native_batch_norm_legit.no_stats": own_statistics,
    "index.Tensor": index,
    "_unsafe_index.Tensor": index,
    "amax.default": _extreme(_op.max),
    "sort.default": _sort,
    "sort.stable": _sort_stable,
    "argsort.default": _argsort,
    "topk.default": _topk,
    "amin.default": _extreme(_op.min),
    "any.default": any_,
    "any.dim": any_,
    "any.dims": any_,
    "prod.dim_int": prod,
    "scatter.src": _scatter("update"),
    "scatter.value": _scatter("update"),
    "scatter_add.default": _scatter("add"),
    "upsample_nearest2d.vec": nearest,
    "_upsample_bilinear2d_aa.default": antialiased,
    "cumsum.default": _cumulative(_op.cumsum),
    "cumprod.default": _cumulative(_op.cumprod),
    "floor_divide.default": _of_two(_floor_divided, _op.floor_divide, rounds=False),
    **{
        f"remainder.{kind}": _of_two(_remainder, _op.floor_mod)
        for kind in ("Tensor", "Scalar", "Scalar_Tensor")
    },
    **{f"pow.{kind}": _of_two(tirx.power, _whole_power) for kind in ("Scalar", "Tensor_Tensor")},
    "hypot.default": _of_two(_hypot, _op.add),
    **{f"fmod.{kind}": _of_two(_fmod, _op.mod) for kind in ("Tensor", "Scalar")},
    "tanh.default": tanh,
    "max_pool2d_with_indices.default": max_pool,
    "max_pool3d_with_indices.default": max_pool,
    "log1p.default": _elementwise(_log1p),
    "expm1.default": _elementwise(_expm1),
    "asinh.default": _elementwise(_asinh),
    "acosh.default": _elementwise(_acosh),
    "atanh.default": _elementwise(_atanh),
    "gather.default": _gather,
    "index_put.default": index_put,
    "_unsafe_index_put.default": index_put,
    "full.default": full,
    "arange.start_step": arange,
    "bucketize.Tensor": bucketize,
    "split.Tensor": _split,
    "split_with_sizes.default": _split,
}


def converters(program: Any) -> dict[str, Callable[[Any, Any], Any]]:
    """`CONVERTERS` for a program."""
    known = partial(attention, constant=_constants(program))
    return {**CONVERTERS, "scaled_dot_product_attention.default": known}


def _trilinear(
    a: Any, b: Any, c: Any, new_a: Any, new_b: Any, new_c: Any, summed: Any, unroll: int = 1
) -> Any:
    product: Any = 1
    for factor, axes in ((a, new_a), (b, new_b), (c, new_c)):
        for axis in axes:
            factor = factor.unsqueeze(axis)
        product = product * factor
    return product.sum(summed)


def _scaled(operation: str) -> Callable[..., Any]:
    """x + alpha * y, or the like; of the front end's converters none reads `alpha`."""

    def of(x: Any, y: Any, alpha: Any = 1) -> Any:
        return NotImplemented if alpha == 1 else getattr(x, operation)(y * alpha)

    return of


def _logaddexp(x: Any, y: Any) -> Any:
    apart = _where(x == y, x.new_zeros(()), -(x - y).abs())  # 0 for equal infinities
    return x.maximum(y) + apart.exp().log1p()


def _in_float32(function: Callable[..., Any]) -> Callable[..., Any]:
    """Halves are computed on in float32, and rounded once."""

    def of(x: Any, *others: Any, **options: Any) -> Any:
        if str(x.dtype).partition(".")[2] not in HALVES:
            return function(x, *others, **options)
        wide = (each.float() if hasattr(each, "dtype") else each for each in (x, *others))
        return function(*wide, **options).to(x.dtype)

    return of


def _celu(x: Any, alpha: float = 1) -> Any:
    import torch

    return torch.ops.aten.elu.default(x, alpha, 1.0, 1.0 / alpha)


def _elu(x: Any, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Any:
    below = (x if input_scale == 1 else x * input_scale).expm1()
    below = below if alpha * scale == 1 else below * (alpha * scale)
    return _where(x > 0, x if scale == 1 else x * scale, below)


def _softplus(x: Any, beta: float = 1, threshold: float = 20) -> Any:
    scaled = x if beta == 1 else x * beta
    below = scaled.exp().log1p()
    return _where(scaled > threshold, x, below if beta == 1 else below / beta)


def _avg_pool(
    x: Any,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil: bool = False,
    count_padding: bool = True,
    divisor: int | None = None,
) -> Any:
    """By another divisor, as the mean over windows of what is padded first."""
    import torch

    if divisor is None:
        return NotImplemented
    dims = 2 if isinstance(kernel, int) else len(kernel)
    pool = getattr(torch.nn.functional, f"avg_pool{dims}d")
    kernel, stride, padding = (_pairs(each, dims) for each in (kernel, stride or kernel, padding))
    shape, around = pool(x, kernel, stride, padding, ceil).shape[-dims:], []
    for i in reversed(range(dims)):
        end = (shape[i] - 1) * stride[i] + kernel[i]
        around += [padding[i], max(end - padding[i] - x.shape[i - dims], 0)]
    padded = torch.nn.functional.pad(x, around)
    return pool(padded, kernel, stride) * (math.prod(kernel) / divisor)


def _inner(x: Any, y: Any) -> Any:
    if x.ndim == 0 or y.ndim == 0:
        return x * y
    rows = x.reshape(-1, x.shape[-1]) @ y.reshape(-1, y.shape[-1]).t()
    return rows.reshape((*x.shape[:-1], *y.shape[:-1]))


def _slice_scatter(
    x: Any, source: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    """Within what there is: TVM's operator goes where it is told."""
    import torch

    first, last, _ = slice(start, end, step).indices(x.shape[dim])
    if (first, last) == (start, end):
        return NotImplemented
    return torch.slice_scatter(x, source, dim, first, max(first, last), step)


def _resized(name: str) -> Callable[..., Any]:
    """PyTorch's own, where TVM's operator is none: it takes the scale of the sizes whichever is
    given, computes places in float32, and divides by 0 for one place between aligned corners."""

    def of(x: Any, size: Any, align: bool, scales: Any) -> Any:
        import torch

        exact = scales is None or all(
            (extent * scale).is_integer() for extent, scale in zip(x.shape[2:], scales, strict=True)
        )
        sizes = size or [int(n * scale) for n, scale in zip(x.shape[2:], scales, strict=True)]
        alone = align and 1 in sizes
        if exact and not alone and x.dtype != torch.float64:
            return NotImplemented
        table = torch._decomp.decomposition_table
        return table[getattr(torch.ops.aten, name).vec](x, size, align, scales)

    return of


def _sign(x: Any) -> Any:
    if "bool" in str(x.dtype):
        return x.clone()
    return (x > 0).to(x) if "uint" in str(x.dtype) else NotImplemented


def _divided(x: Any, y: Any, *, rounding_mode: str | None = None) -> Any:
    if rounding_mode == "floor":
        return x // y
    if rounding_mode is None or x.is_floating_point() or isinstance(y, float):
        return NotImplemented
    if not isinstance(y, int) and y.is_floating_point():
        return NotImplemented
    if "uint" in str(x.dtype):
        return x // y
    x = x.long() if "bool" in str(x.dtype) else x
    quotient = x.abs() // abs(y)
    return quotient * (1 - 2 * ((x < 0) ^ (y < 0)).to(quotient.dtype))


def _clamp(x: Any, low: Any = None, high: Any = None) -> Any:
    if "bool" in str(x.dtype):
        return x.long().clamp(low, high)
    if "uint" in str(x.dtype) and isinstance(low, int) and low < 0:
        return x.clamp(0, high)
    return NotImplemented


def _of_numbers(operation: str) -> Callable[..., Any]:
    """Booleans as the numbers they stand for."""

    def of(x: Any, *others: Any) -> Any:
        return (
            NotImplemented if "bool" not in str(x.dtype) else getattr(x.long(), operation)(*others)
        )

    return of


def _signbit(x: Any) -> Any:
    negative = x < 0
    return negative | ((x == 0) & (1 / x < 0)) if x.is_floating_point() else negative


def _copysign(x: Any, y: Any) -> Any:
    return _where(_signbit(y), -x.abs(), x.abs())


def _where(condition: Any, x: Any, y: Any) -> Any:
    return y.where(~condition, x)


def _preferred(extreme: str) -> Callable[[Any, Any], Any]:
    """The larger, or the smaller, of two; the other one of a NaN."""

    def of(x: Any, y: Any) -> Any:
        return _where(x != x, y, _where(y != y, x, getattr(x, extreme)(y)))

    return of


def _largest(x: Any, dim: int, keepdim: bool = False) -> Any:
    return x.amax(dim, keepdim), x.argmax(dim, keepdim)


def _smallest(x: Any, dim: int, keepdim: bool = False) -> Any:
    return x.amin(dim, keepdim), x.argmin(dim, keepdim)


def _kthvalue(x: Any, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    parts = (each.narrow(dim, k - 1, 1) for each in x.sort(dim))
    return tuple(each if keepdim else each.squeeze(dim) for each in parts)


def _median(x: Any, dim: int, keepdim: bool = False) -> Any:
    """The lower of the two in the middle, and its place; a NaN where there is one."""
    if x.ndim == 0:
        return x.clone(), x.new_zeros((), dtype=_long())
    middle = (x.shape[dim] - 1) // 2
    value, place = (each.narrow(dim, middle, 1) for each in x.sort(dim))
    if x.is_floating_point():
        unknown = x != x
        some = unknown.any(dim, keepdim=True)
        value = value.masked_fill(some, math.nan)
        place = _where(some, unknown.int().argmax(dim, keepdim=True), place)
    return tuple(each if keepdim else each.squeeze(dim) for each in (value, place))


def _long() -> Any:
    import torch

    return torch.int64


def _of_a_number(name: str) -> Callable[..., Any]:
    """What an operator along an axis gives of a tensor without axes: that of one element."""

    def of(x: Any, *others: Any, **options: Any) -> Any:
        import torch

        if x.ndim:
            return NotImplemented
        packet, overload = name.split(".")
        operator = getattr(getattr(torch.ops.aten, packet), overload)
        return operator(x.reshape(1), *others, **options).reshape(())

    return of


def _adaptive_max_pool2d(x: Any, size: Any) -> Any:
    """The largest of each window, and its place: windows begin and end as `size` divides."""
    import torch

    *_, height, width = x.shape
    rows, columns = (
        [(i * extent // count, -(-(i + 1) * extent // count)) for i in range(count)]
        for extent, count in zip((height, width), size, strict=True)
    )
    values, places = [], []
    for top, bottom in rows:
        for left, right in columns:
            window = x.narrow(-2, top, bottom - top).narrow(-1, left, right - left).flatten(-2)
            at = window.argmax(-1)
            values.append(window.amax(-1))
            row = at.div(right - left, rounding_mode="floor")
            places.append((top + row) * width + left + at - row * (right - left))
    shape = (*x.shape[:-2], *size)
    return tuple(torch.stack(each, -1).reshape(shape) for each in (values, places))


# Operators of PyTorch, by name, in terms of others.
DECOMPOSITIONS: dict[str, Callable[..., Any]] = {
    "adaptive_max_pool2d.default": _adaptive_max_pool2d,
    "_trilinear.default": _trilinear,
    "signbit.default": _signbit,
    "copysign.Tensor": _copysign,
    **{f"{name}.{kind}": _scaled(name) for name in ("add", "sub") for kind in ("Tensor", "Scalar")},
    "rsub.Tensor": lambda x, y, alpha=1: x * -alpha + y,
    "rsub.Scalar": lambda x, y, alpha=1: x * -alpha + y,
    "sign.default": _sign,
    "neg.default": lambda x: x * 255 if "uint8" in str(x.dtype) else NotImplemented,
    "clamp.default": _clamp,
    "div.Tensor_mode": _divided,
    "div.Scalar_mode": _divided,
    "pow.Tensor_Scalar": _of_numbers("pow"),
    "upsample_bilinear2d.vec": _resized("upsample_bilinear2d"),
    "upsample_bicubic2d.vec": _resized("upsample_bicubic2d"),
    "isfinite.default": lambda x: x.abs() < math.inf if x.is_floating_point() else x == x,
    "logaddexp.default": _in_float32(_logaddexp),
    "elu.default": _in_float32(_elu),
    "softplus.default": _in_float32(_softplus),
    "avg_pool2d.default": _avg_pool,
    "avg_pool3d.default": _avg_pool,
    "inner.default": _inner,
    "slice_scatter.default": _slice_scatter,
    "full_like.default": lambda x, value, **_: x.new_full(x.shape, value),
    # LLVM has neither for vectors of float64.
    "sinh.default": _in_float32(lambda x: (x.expm1() - (-x).expm1()) * 0.5),
    "cosh.default": _in_float32(lambda x: (x.exp() + (-x).exp()) * 0.5),
    "mish.default": _in_float32(lambda x: x * x.exp().log1p().tanh()),
    "celu.default": _celu,
    "exp2.default": lambda x: 2**x,
    "fmax.default": _preferred("maximum"),
    "fmin.default": _preferred("minimum"),
    "max.dim": _largest,
    "min.dim": _smallest,
    "kthvalue.default": _kthvalue,
    "median.dim": _median,
    "median.default": lambda x: _median(x.reshape(-1), 0)[0],
    **{
        name: _of_a_number(name)
        for name in (
            *("sum.dim_IntList", "mean.dim", "var.correction", "argmax.default", "argmin.default"),
            *("_softmax.default", "_log_softmax.default", "flip.default", "index_select.default"),
        )
    },
}
