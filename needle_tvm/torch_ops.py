"""PyTorch's operators that are translated here, not taken apart first or left to TVM's front end.

- `scaled_dot_product_attention` would arrive as a "safe" softmax of scores in memory, with the
  scale in two halves. Here it is product, scale, mask, softmax and product, which becomes one
  kernel. The safe softmax gives 0 where a plain one gives NaN: in rows of a mask that are -inf
  throughout. These are set to 0 at the end, unless the mask is known to have none.
- `linear` and `matmul` would arrive as products of a batch of copies of the weights where the input
  is a permutation. Here the rows of the input are multiplied, before they are permuted.
- `amax` and `amin` the front end does not know.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from needle_tvm._tvm import relax, static_shape

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
        mask = relax.const(np.where(seen, 0.0, -np.inf).astype(dtype))
    elif given.get("attn_mask") is not None:
        value = constant(given["attn_mask"])
        mask = importer.env[given["attn_mask"]] if value is None else relax.const(value)
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
    return importer.block_builder.emit(_op.matmul(x, y))


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
    y = emit(_op.matmul(rows, weights))
    if bias is not None:
        y = emit(_op.add(y, bias))
    if rank != 2:
        y = emit(_op.reshape(y, (*lead, _static(weights)[-1])))
    return y if order is None else emit(_op.permute_dims(y, order))


def _extreme(reduction: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    def convert(node: Any, importer: Any) -> Any:
        names = ("x", "dim", "keepdim")
        given = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
        axes = given.get("dim")
        axes = [axes] if isinstance(axes, int) else list(axes or []) or None
        x = importer.env[node.args[0]]
        return importer.block_builder.emit(reduction(x, axes, bool(given.get("keepdim", False))))

    return convert


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


def converters(program: Any) -> dict[str, Callable[[Any, Any], Any]]:
    """By PyTorch's names, as the front end knows them: each takes a node and an importer."""
    return {
        "scaled_dot_product_attention.default": partial(attention, constant=_constants(program)),
        "linear.default": linear,
        "matmul.default": matmul,
        "amax.default": _extreme(_op.max),
        "amin.default": _extreme(_op.min),
    }
