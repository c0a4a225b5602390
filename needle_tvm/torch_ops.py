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
    if dtype == "float32":
        axes = list(range(2, len(shape)))
        normalized = _op.nn.group_norm(x, weight, bias, groups, 1, axes, float(epsilon))
        return importer.block_builder.emit(normalized)
    rows = (shape[0], groups, math.prod(shape[1:]) // groups)
    return _normalized(importer, x, rows, weight, bias, float(epsilon))


def _normalized(
    importer: Any, x: Any, rows: tuple[int, ...], weight: Any, bias: Any, epsilon: float
) -> Any:
    """Each row of `x` reshaped normalized, and then each channel scaled: TVM's own norms of groups
    and instances take float32 alone."""
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
    if dtype == "float32":
        axes = [0, *range(2, len(shape))]
        return emit(_op.nn.instance_norm(x, *operands, 1, axes, float(epsilon)))
    order = [1, 0, *range(2, len(shape))]
    turned = emit(_op.permute_dims(x, order))
    ones, zeros = (relax.const(np.full(shape[:1], value), dtype) for value in (1.0, 0.0))
    rows = (shape[1], math.prod(shape) // shape[1])
    turned = _normalized(importer, turned, rows, ones, zeros, float(epsilon))
    out = emit(_op.permute_dims(turned, order))
    scale, shift = (emit(_op.reshape(each, (-1, *[1] * (len(shape) - 2)))) for each in operands)
    return emit(_op.add(emit(_op.multiply(out, scale)), shift))


def floor_divide(node: Any, importer: Any) -> Any:
    """The largest whole number below the quotient, in the dtype of the result."""
    dtype, emit = _dtype(node), importer.block_builder.emit
    x, y = (
        emit(_op.astype(importer.env[each], dtype))
        if each in importer.env
        else relax.const(each, dtype)
        for each in node.args[:2]
    )
    return emit(_op.floor_divide(x, y))


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
        at, extent = emit(_op.astype(tensor, "int64")), relax.const(shape[axis], "int64")
        negative = emit(_op.less(at, relax.const(0, "int64")))
        at = emit(_op.where(negative, emit(_op.add(at, extent)), at))
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


def _along(node: Any, importer: Any) -> tuple[Any, list[int] | None, bool]:
    """What a reduction takes, the axes it goes along (None: all), and whether these are kept. A
    number has none, whatever is asked for."""
    given = dict(zip(("x", "dim", "keepdim"), node.args, strict=False)) | dict(node.kwargs)
    x, axes = importer.env[given["x"]], given.get("dim")
    axes = [axes] if isinstance(axes, int) else list(axes or []) or None
    return x, axes if _static(x) else None, bool(given.get("keepdim", False))


def _dtype(node: Any) -> str:
    """The dtype PyTorch gives the result."""
    return str(node.meta["val"].dtype).partition(".")[2]


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


def elu(node: Any, importer: Any) -> Any:
    """scale * x above 0, else scale * alpha * (exp(x * input_scale) - 1)."""
    given = list(node.args)
    x, alpha, scale, input_scale = given + [1.0, 1.0, 1.0][len(given) - 1 :]
    x, emit = importer.env[x], importer.block_builder.emit

    def scaled(y: Any, by: float) -> Any:
        return y if by == 1 else emit(_op.multiply(y, relax.const(by, str(x.ty.dtype))))

    zero, one = (relax.const(value, str(x.ty.dtype)) for value in (0.0, 1.0))
    below = emit(_op.subtract(emit(_op.exp(scaled(x, input_scale))), one))
    above = emit(_op.greater(x, zero))
    return emit(_op.where(above, scaled(x, scale), scaled(below, alpha * scale)))


def cumsum(node: Any, importer: Any) -> Any:
    """Sums of all elements up to each, in the dtype of the result."""
    x, axis = node.args[:2]
    return importer.block_builder.emit(_op.cumsum(importer.env[x], axis, _dtype(node)))


def _scatter(reduction: str) -> Callable[[Any, Any], Any]:
    """Elements of a tensor, or a number, put where indices along an axis say. TVM's own takes
    indices that are as many as `x` along the other axes: here the elements of all axes are in
    one."""

    def convert(node: Any, importer: Any) -> Any:
        names = ("x", "axis", "places", "source")
        given = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
        x, places = importer.env[given["x"]], importer.env[given["places"]]
        shape, chosen, emit = _static(x), _static(places), importer.block_builder.emit
        axis, dtype = given["axis"] % len(shape), str(x.ty.dtype)
        source = importer.env.get(given["source"])
        if source is None:
            source = relax.const(np.full(chosen, given["source"]), dtype)
        elif _static(source) != chosen:
            axes, starts = list(range(len(chosen))), [0] * len(chosen)
            source = emit(_op.strided_slice(source, axes, starts, list(chosen)))
        strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
        others = sum(
            at * (stride if i != axis else 0)
            for i, (at, stride) in enumerate(zip(np.indices(chosen), strides, strict=True))
        )
        flat = emit(
            _op.multiply(emit(_op.astype(places, "int64")), relax.const(strides[axis], "int64"))
        )
        flat = emit(_op.add(flat, relax.const(np.asarray(others), "int64")))
        operands = [emit(_op.reshape(each, (-1,))) for each in (x, flat, source)]
        out = emit(_op.scatter_elements(*operands, 0, reduction))
        return emit(_op.reshape(out, shape))

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
    "elu.default": elu,
    "cumsum.default": cumsum,
    "floor_divide.default": floor_divide,
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
    "fmod.Scalar": _of_numbers("fmod"),
    "remainder.Scalar": _of_numbers("remainder"),
    "pow.Tensor_Scalar": _of_numbers("pow"),
    "upsample_bilinear2d.vec": _resized("upsample_bilinear2d"),
    "upsample_bicubic2d.vec": _resized("upsample_bicubic2d"),
    "isfinite.default": lambda x: x.abs() < math.inf if x.is_floating_point() else x == x,
    "logaddexp.default": _logaddexp,
    # LLVM has neither for vectors of float64.
    "sinh.default": lambda x: (x.expm1() - (-x).expm1()) * 0.5,
    "cosh.default": lambda x: (x.exp() + (-x).exp()) * 0.5,
    "exp2.default": lambda x: 2**x,
    "hypot.default": lambda x, y: (x * x + y * y).sqrt(),
    "fmax.default": _preferred("maximum"),
    "fmin.default": _preferred("minimum"),
    "max.dim": _largest,
    "min.dim": _smallest,
    "kthvalue.default": _kthvalue,
}
