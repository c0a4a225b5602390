"""Converters for PyTorch operators that are neither decomposed nor left to TVM's front end.

- `scaled_dot_product_attention` would be decomposed into a "safe" softmax of materialised scores,
  with the scale split in two. Here it is matmul, scale, mask, softmax and matmul, which becomes one
  kernel. The safe softmax gives 0 where a plain one gives NaN: in rows of a mask that are all -inf.
  These are set to 0 at the end, unless the mask is known to have none.
- `linear` and `matmul` of a permuted input would become batched matmuls of copies of the weights.
  Here the rows of the input are multiplied before they are permuted.
- The front end computes convolutions and batched matmuls in float32 whatever their dtype, does not
  handle norms without a scale, and orders the axes of an index by several tensors differently from
  PyTorch.
- The front end does not know `amax` and `amin`, and interprets `grid_sample` differently.

`decompositions` rewrites other operators that the front end does not know.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from needle.backend_ndarray.dtypes import HALVES
from needle.ops import _functions
from needle_tvm._tvm.names import relax, te, tirx
from needle_tvm.frontend.torch import elements, grouped, places, recurrence, resizes, special
from needle_tvm.frontend.torch import graph as torch_graph
from needle_tvm.frontend.torch.arrays import array
from needle_tvm.frontend.torch.nodes import (
    alike,
    along,
    arguments,
    broadcast,
    dtype_of,
    extents_of,
    filled,
    pairs,
    result_dtype,
    shape_of,
)

_op = relax.op


def attention(node: Any, importer: Any, constant: Callable[[Any], Any]) -> Any:
    """softmax(q k^T * scale + mask) v of (..., T, D), (..., S, D) and (..., S, E).

    `constant` returns the value of a node that depends on no input and no parameter, else None.
    """
    given = torch_graph.bound(node.target, node.args, node.kwargs)
    emit = importer.block_builder.emit
    q, k, v = (importer.env[given[name]] for name in ("query", "key", "value"))
    if given.get("enable_gqa"):
        k, v = (_repeated(emit, operand, extents_of(q)[-3]) for operand in (k, v))
    leads = [extents_of(operand)[:-2] for operand in (q, k, v)]
    lead, same_lead = broadcast(*leads), all(alike(leads[0], other) for other in leads)
    (queries, features), keys = extents_of(q)[-2:], extents_of(k)[-2]
    result, dtype = (*lead, queries, extents_of(v)[-1]), str(q.ty.dtype)
    if alike(keys, 0):
        return emit(_op.zeros(result, dtype))
    mask, empty = None, None
    if given.get("is_causal"):  # every row sees the first key
        mask = _causal(importer, queries, keys, dtype)
    elif given.get("attn_mask") is not None:
        value, mask = constant(given["attn_mask"]), importer.env[given["attn_mask"]]
        if value is not None:
            mask = relax.const(value, "bool" if value.dtype == bool else dtype)
        if same_lead and len(lead) > 2 and len(extents_of(mask)) > 3:
            mask = emit(_op.broadcast_to(mask, (*lead, *extents_of(mask)[-2:])))
            rows = (importer.product(lead[:-1]), *extents_of(mask)[-3:])
            mask = emit(_op.reshape(mask, rows))
        mask, empty = _mask(emit, mask, value, dtype)
    if same_lead:
        # Always four axes: batch, heads, rows, features.
        batch, heads = importer.product(lead[:-1]), lead[-1] if lead else 1
        q, k, v = (
            emit(_op.reshape(each, (batch, heads, *extents_of(each)[-2:])))
            if len(lead) != 2
            else each
            for each in (q, k, v)
        )
    rank, scale = len(extents_of(k)), given.get("scale")
    turned = emit(_op.permute_dims(k, [*range(rank - 2), rank - 1, rank - 2]))
    scale = 1 / math.sqrt(features) if scale is None else float(scale)
    scores = emit(_op.multiply(emit(_op.matmul(q, turned)), relax.const(scale, dtype)))
    if mask is not None:
        scores = emit(_op.add(scores, mask))
    out = emit(_op.matmul(emit(_op.nn.softmax(scores, axis=-1)), v))
    if empty is not None:
        out = emit(_op.where(empty, relax.const(0.0, dtype), out))
    return out if alike(extents_of(out), result) else emit(_op.reshape(out, result))


def _causal(importer: Any, queries: Any, keys: Any, dtype: str) -> Any:
    """A mask to add to scores: 0 where the key's number is at most the query's, else -inf."""
    if isinstance(queries, int) and isinstance(keys, int):
        seen = np.tril(np.ones((queries, keys), bool))
        return relax.const(np.where(seen, 0.0, -np.inf), dtype)

    def mask(sizes: Any) -> Any:
        zero, unseen = tirx.const(0, dtype), -tirx.infinity(dtype)
        return te.compute(sizes, lambda row, key: tirx.Select(key <= row, zero, unseen))

    return importer.block_builder.emit_te(mask, [queries, keys], primfunc_name_hint="causal_mask")


def _repeated(emit: Callable[[Any], Any], x: Any, heads: int) -> Any:
    """Repeat the heads of (..., G, S, D), each beside its copies, to `heads` in all."""
    *lead, groups, length, features = extents_of(x)
    split = emit(_op.reshape(x, (*lead, groups, 1, length, features)))
    wide = emit(_op.broadcast_to(split, (*lead, groups, heads // groups, length, features)))
    return emit(_op.reshape(wide, (*lead, heads, length, features)))


def _mask(emit: Callable[[Any], Any], mask: Any, value: Any, dtype: str) -> tuple[Any, Any]:
    """The mask to add to the scores, and which rows see no key, or None if every row sees one.

    `value` is the mask's value if it is known.
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
    return _rows_product(importer, x, transposed, bias[0] if bias else None)


def matmul(node: Any, importer: Any) -> Any:
    """NumPy's matmul of two tensors of any rank."""
    x, y = (importer.env[each] for each in node.args)
    if len(extents_of(y)) == 2 and len(extents_of(x)) > 2:
        return _rows_product(importer, x, y, None)
    emit, dtype = importer.block_builder.emit, str(x.ty.dtype)
    if dtype not in HALVES:
        return emit(_op.matmul(x, y))
    return emit(_op.astype(emit(_op.matmul(x, y, out_dtype="float32")), dtype))


def _rows_product(importer: Any, x: Any, weights: Any, bias: Any) -> Any:
    """x (..., K) @ weights (K, N) + bias as a 2-D matmul, then permuted as `x` is."""
    builder = importer.block_builder
    emit, rank, order = builder.emit, len(extents_of(x)), None
    source = builder.lookup_binding(x) if isinstance(x, relax.Var) else None
    if isinstance(source, relax.Call) and str(source.op.name) == "relax.permute_dims":
        axes = source.attrs.axes
        order = [int(axis) % rank for axis in (reversed(range(rank)) if axes is None else axes)]
        if order[-1] == rank - 1:
            x = source.args[0]
        else:
            order = None
    *lead, k = extents_of(x)
    dtype, count = str(x.ty.dtype), importer.product(lead)
    if alike(k, 0):  # a reshape would take the 0 for "the extent of x"
        rows = emit(_op.zeros((count, k), dtype))
    else:
        rows = x if rank == 2 else emit(_op.reshape(x, (count, k)))
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
        y = emit(_op.reshape(y, (*lead, extents_of(weights)[-1])))
    return y if order is None else emit(_op.permute_dims(y, order))


def _extreme(reduction: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    def convert(node: Any, importer: Any) -> Any:
        return importer.block_builder.emit(reduction(*along(node, importer)))

    return convert


def grid_sample(node: Any, importer: Any) -> Any:
    """Sample (B, C, H, W) at the positions (B, h, w, 2) of a grid. TVM's operator takes the grid as
    (B, 2, h, w), but the front end does not permute it."""
    x, grid = (importer.env[each] for each in node.args[:2])
    method, padding, align = (*node.args[2:5], 0, 0, False)[:3]
    emit = importer.block_builder.emit
    if padding == 2 and align:  # TVM divides by extent - 1; two equal pixels give the same result
        for axis in (2, 3):
            if alike(extents_of(x)[axis], 1):
                x = emit(_op.concat([x, x], axis))
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
    """Convolution in one, two or three dimensions, in the dtype of its input."""
    given = [*node.args, *[None] * (9 - len(node.args))]
    x, weight = (importer.env[each] for each in given[:2])
    stride, padding, dilation, transposed, added, groups = given[3:]
    dims, emit = len(extents_of(x)) - 2, importer.block_builder.emit
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
        if any(more >= step for more, step in zip(added, stride, strict=False)):
            raise ValueError(
                f"{node.target}: output_padding={added} with stride={stride}: TVM takes less alone"
            )
        options["output_padding"] = added
    kind = getattr(_op.nn, f"conv{dims}d{'_transpose' if transposed else ''}")
    y = emit(kind(x, weight, **options))
    if given[2] is None:
        return y
    bias = emit(_op.reshape(importer.env[given[2]], (1, -1, *[1] * dims)))
    return emit(_op.add(y, bias))


def _matmul_of(names: tuple[str, ...]) -> Callable[[Any, Any], Any]:
    """beta * added + alpha * (x @ y), or x @ y if `names` has no "added"."""

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


def layer_norm(node: Any, importer: Any) -> Any:
    """Layer norm over the last axes."""
    x, shape = importer.env[node.args[0]], tuple(node.args[1])
    weight, bias = (
        filled(importer, each, value, shape, str(x.ty.dtype))
        for each, value in zip(node.args[2:4], (1.0, 0.0), strict=True)
    )
    axes, rank = len(shape), len(extents_of(x))
    return importer.block_builder.emit(
        _op.nn.layer_norm(x, weight, bias, list(range(rank - axes, rank)), float(node.args[4]))
    )


def group_norm(node: Any, importer: Any) -> Any:
    """Group norm over the channels of a group and all positions."""
    x, weight, bias, _, channels, _, groups, epsilon = node.args
    x = importer.env[x]
    shape, dtype = extents_of(x), str(x.ty.dtype)
    weight, bias = (
        filled(importer, each, value, (channels,), dtype)
        for each, value in ((weight, 1.0), (bias, 0.0))
    )
    rows = (shape[0], groups, importer.product((channels // groups, *shape[2:])))
    return _normalized(importer, x, rows, weight, bias, float(epsilon))


def _normalized(
    importer: Any, x: Any, rows: tuple[Any, ...], weight: Any, bias: Any, epsilon: float
) -> Any:
    """Normalise each row of `x` reshaped to `rows`, then scale and shift each channel. TVM's own
    group and instance norms subtract the squared mean from the mean of squares, and take only
    float32."""
    emit, shape, dtype = importer.block_builder.emit, extents_of(x), str(x.ty.dtype)
    if not isinstance(rows[-1], int):
        raise ValueError("the number of elements that are normalised together is open")
    one, zero = (relax.const(np.full(rows[-1:], value), dtype) for value in (1.0, 0.0))
    out = emit(_op.nn.layer_norm(emit(_op.reshape(x, rows)), one, zero, [-1], epsilon))
    out = emit(_op.reshape(out, shape))
    weight, bias = (
        emit(_op.reshape(each, (-1, *[1] * (len(shape) - 2)))) for each in (weight, bias)
    )
    return emit(_op.add(emit(_op.multiply(out, weight)), bias))


def batch_norm(node: Any, importer: Any) -> Any:
    """Batch norm by given statistics."""
    x, weight, bias, mean, variance, _, epsilon = node.args
    x = importer.env[x]
    channels, dtype = extents_of(x)[1:2], str(x.ty.dtype)
    operands = [
        filled(importer, each, value, channels, dtype)
        for each, value in ((weight, 1.0), (bias, 0.0), (mean, 0.0), (variance, 1.0))
    ]
    emit = importer.block_builder.emit
    result = emit(_op.nn.batch_norm(x, *operands, axis=1, epsilon=float(epsilon), training=False))
    return emit(relax.TupleGetItem(result, 0))


def own_statistics(node: Any, importer: Any) -> Any:
    """Batch norm by the statistics of the input; for a batch of one it is instance norm."""
    x, weight, bias, *_, epsilon = node.args
    x, emit = importer.env[x], importer.block_builder.emit
    shape, dtype = extents_of(x), str(x.ty.dtype)
    if not isinstance(shape[0], int):
        raise ValueError("the batch over which statistics are taken is open")
    order = [1, 0, *range(2, len(shape))]
    turned = emit(_op.permute_dims(x, order))
    ones, zeros = (relax.const(np.full(shape[:1], value), dtype) for value in (1.0, 0.0))
    rows = (shape[1], importer.product((shape[0], *shape[2:])))
    turned = _normalized(importer, turned, rows, ones, zeros, float(epsilon))
    out = emit(_op.permute_dims(turned, order))
    for given, operation in ((weight, _op.multiply), (bias, _op.add)):
        if given is not None:
            each = emit(_op.reshape(importer.env[given], (shape[1], *[1] * (len(shape) - 2))))
            out = emit(operation(out, each))
    return out


def any_(node: Any, importer: Any) -> Any:
    """Whether any element is not 0, along some axes or all."""
    (x, axes, keepdim), emit = along(node, importer), importer.block_builder.emit
    if str(x.ty.dtype) != "bool":
        x = emit(_op.not_equal(x, relax.const(0, str(x.ty.dtype))))
    found = emit(_op.max(emit(_op.astype(x, "int8")), axes, keepdim))
    return emit(_op.astype(found, result_dtype(node)))


def prod(node: Any, importer: Any) -> Any:
    """The product along an axis."""
    (x, axes, keepdim), emit = along(node, importer), importer.block_builder.emit
    x = emit(_op.astype(x, result_dtype(node)))
    return emit(_op.prod(x, axes, keepdims=keepdim)) if extents_of(x) else x


def _cumulative(operation: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    """Cumulative sums or products in the dtype of the result; halves in float32, rounded once."""

    def convert(node: Any, importer: Any) -> Any:
        x, dtype, emit = importer.env[node.args[0]], result_dtype(node), importer.block_builder.emit
        (axis,) = arguments(node, dim=0)[:1]
        x = emit(_op.astype(x, "float32" if dtype in HALVES else dtype))
        out = emit(operation(x, axis)) if extents_of(x) else x
        return emit(_op.astype(out, dtype))

    return convert


def max_pool(node: Any, importer: Any) -> Any:
    """The largest element of each window, and its index if that is used."""
    x, emit = importer.env[node.args[0]], importer.block_builder.emit
    values, places = node.meta["val"]
    dims = 3 if "3d" in str(node.target) else 2
    kernel, stride, padding, dilation, ceil = arguments(
        node, kernel=1, stride=(), padding=0, dilation=1, ceil=False
    )
    kernel, stride, padding, dilation = (
        pairs(each, dims) for each in (kernel, stride or kernel, padding, dilation)
    )
    shape = extents_of(x)
    extents = shape[-dims:]
    rows = emit(_op.reshape(x, (importer.product(shape[:-dims]), 1, *extents)))
    pool = getattr(_op.nn, f"max_pool{dims}d")
    out = emit(pool(rows, kernel, stride, padding, dilation, ceil))
    out = emit(_op.astype(emit(_op.reshape(out, importer.shape(values))), dtype_of(values)))
    asked = any(user.args[1] == 1 for user in node.users)
    if not asked:
        return emit(relax.Tuple([out, relax.const(0, "int64")]))
    shape, extents = shape_of(x), shape_of(x)[-dims:]
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
    """The flat indices (windows, elements) that a pool's windows see. An index beyond the edge is
    replaced by another one of the same window."""
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
    """A tensor filled with one number, which need not be finite."""
    shape, dtype = importer.shape(node.meta["val"]), result_dtype(node)
    value = node.args[1]
    value = importer.env[value] if value in importer.env else relax.const(value, dtype)
    emit = importer.block_builder.emit
    return emit(_op.full(shape, value, dtype))


def arange(node: Any, importer: Any) -> Any:
    """Numbers from the first up, or down, to the last. TVM's operator only counts up."""
    start, end, step = (*node.args, 1)[:3]
    (count,), dtype = importer.shape(node.meta["val"]), result_dtype(node)
    if isinstance(count, int) and (step <= 0 or "int" not in dtype):
        return relax.const(start + np.arange(count) * step, dtype)
    return importer.block_builder.emit(_op.arange(start, end, step, dtype))


def _split(node: Any, importer: Any) -> Any:
    """Parts along an axis. A single part is not a split, which TVM's passes cannot take, and TVM's
    operator takes numbers alone."""
    x, emit = importer.env[node.args[0]], importer.block_builder.emit
    _, axis = arguments(node, sizes=1, dim=0)
    counts = [importer.shape(part)[axis] for part in node.meta["val"]]
    ends = [importer.added(*counts[: i + 1]) for i in range(len(counts))]
    if len(counts) == 1:
        return emit(relax.Tuple([x]))
    if all(isinstance(count, int) for count in counts):
        return emit(_op.split(x, ends[:-1], axis))
    return emit(
        relax.Tuple(
            [
                emit(_op.strided_slice(x, [axis], [begin], [end], [1], assume_inbound=True))
                for begin, end in zip((0, *ends), ends, strict=False)
            ]
        )
    )


def _constants(program: Any) -> Callable[[Any], Any]:
    """A function that evaluates a node of the program; None if it depends on an argument."""
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
        return None if value is None else array(value)

    return constant


def item(node: Any, importer: Any) -> Any:
    """A number of Python's made of a tensor, as a tensor without axes."""
    return _op.reshape(importer.env[node.args[0]], ())


# By PyTorch's name of the operator; each converter takes a node and an importer.
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
    "index.Tensor": places.index,
    "_unsafe_index.Tensor": places.index,
    "amax.default": _extreme(_op.max),
    "sort.default": places.sort,
    "sort.stable": places.sort_stable,
    "argsort.default": places.argsort,
    "topk.default": places.topk,
    "slice.Tensor": places.sliced,
    "slice_scatter.default": places.slice_scatter,
    "amin.default": _extreme(_op.min),
    "any.default": any_,
    "any.dim": any_,
    "any.dims": any_,
    "prod.dim_int": prod,
    "scatter.src": places.scatter("update"),
    "scatter.value": places.scatter("update"),
    "scatter_add.default": places.scatter("add"),
    "scatter_reduce.two": places.scatter_reduce,
    "_to_copy.default": elements.cast,
    **resizes.CONVERTERS,
    **special.CONVERTERS,
    "cumsum.default": _cumulative(_op.cumsum),
    "cumprod.default": _cumulative(_op.cumprod),
    "floor_divide.default": elements.of_two(
        _functions.floor_divided, _op.floor_divide, rounds=False
    ),
    **{
        f"remainder.{kind}": elements.of_two(_functions.remainder, _op.floor_mod)
        for kind in ("Tensor", "Scalar", "Scalar_Tensor")
    },
    **{
        f"pow.{kind}": elements.of_two(elements.power, elements.whole_power)
        for kind in ("Scalar", "Tensor_Tensor")
    },
    **{
        f"{name}.{kind}": elements.of_two(
            elements.power, elements.shifted(left="__l" in name or "left" in name)
        )
        for name in ("bitwise_left_shift", "bitwise_right_shift", "__lshift__", "__rshift__")
        for kind in (
            "Tensor",
            *(("Scalar",) if "__" in name else ("Tensor_Scalar", "Scalar_Tensor")),
        )
    },
    "hypot.default": elements.of_two(elements.hypot, _op.add),
    **{f"fmod.{kind}": elements.of_two(_functions.fmod, _op.mod) for kind in ("Tensor", "Scalar")},
    "max_pool2d_with_indices.default": max_pool,
    "max_pool3d_with_indices.default": max_pool,
    "log1p.default": elements.elementwise(_functions.log1p),
    "expm1.default": elements.elementwise(_functions.expm1),
    "gather.default": places.gather,
    "index_put.default": places.index_put,
    "_unsafe_index_put.default": places.index_put,
    "full.default": full,
    "arange.start_step": arange,
    "bucketize.Tensor": places.bucketize,
    **{f"{name}.default": places.viewed for name in ("view", "reshape", "_unsafe_view")},
    "repeat.default": places.repeated,
    "split.Tensor": _split,
    "split_with_sizes.default": _split,
    "item.default": item,
    "_local_scalar_dense.default": item,
}


def converters(program: Any) -> dict[str, Callable[[Any, Any], Any]]:
    """`CONVERTERS` and those of needle's own operators, with attention that knows the program's
    constants."""
    known = partial(attention, constant=_constants(program))
    own = {**recurrence.CONVERTERS, **grouped.CONVERTERS}
    return {**CONVERTERS, **own, "scaled_dot_product_attention.default": known}
