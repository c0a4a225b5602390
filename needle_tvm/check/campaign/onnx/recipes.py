"""Recipes of ONNX's operators on elements, axes and places, which random graphs are drawn from.

Each adds nodes to a graph, or raises Unfit. `layers` has the recipes of layers.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from needle_tvm.check.campaign.onnx.draw import (
    INTEGERS,
    MICROSOFT,
    Drawer,
    Made,
    Unfit,
)

# Elementwise operators and their attributes; "|x|" has its operand's absolute value plus 0.1, "<1"
# its operand within (-0.9, 0.9).
_UNARY: tuple[tuple[str, dict[str, tuple[Any, ...]], str], ...] = (
    ("Abs", {}, ""), ("Neg", {}, ""), ("Exp", {}, ""), ("Log", {}, "|x|"), ("Sqrt", {}, "|x|"),
    ("Reciprocal", {}, "|x|"), ("Sigmoid", {}, ""), ("Tanh", {}, ""), ("Relu", {}, ""),
    ("LeakyRelu", {"alpha": (0.2, -0.5)}, ""), ("Elu", {"alpha": (0.5, 2.0)}, ""),
    ("Selu", {"alpha": (1.5,), "gamma": (0.7,)}, ""), ("Celu", {"alpha": (0.5, 2.0)}, ""),
    ("Softplus", {}, ""), ("Softsign", {}, ""), ("HardSwish", {}, ""), ("Mish", {}, ""),
    ("HardSigmoid", {"alpha": (0.3,), "beta": (0.6,)}, ""), ("Erf", {}, ""),
    ("ThresholdedRelu", {"alpha": (0.3,)}, ""), ("Gelu", {"approximate": ("none", "tanh")}, ""),
    ("Shrink", {"lambd": (0.3,), "bias": (0.1,)}, ""), ("Sin", {}, ""), ("Cos", {}, ""),
    ("Tan", {}, "<1"), ("Asin", {}, "<1"), ("Acos", {}, "<1"), ("Atan", {}, ""), ("Sinh", {}, ""),
    ("Cosh", {}, ""), ("Asinh", {}, ""), ("Atanh", {}, "<1"), ("Round", {}, ""), ("Floor", {}, ""),
    ("Ceil", {}, ""), ("Sign", {}, ""), ("IsNaN", {}, ""), ("Identity", {}, ""),
    ("IsInf", {"detect_negative": (0, 1), "detect_positive": (0, 1)}, ""),
)  # fmt: skip
_MICROSOFT_UNARY = ("Gelu", "FastGelu", "QuickGelu")


def _moved(d: Drawer, x: Made, domain: str) -> Made:
    if domain == "|x|":
        return d.one("Add", d.one("Abs", x), d.constant(0.1, x.dtype))
    if domain == "<1":
        return d.one("Clip", x, d.constant(-0.9, x.dtype), d.constant(0.9, x.dtype))
    return x


def unary(d: Drawer) -> None:
    op, attributes, domain = d.rng.choice(_UNARY)
    d.one(op, _moved(d, d.floating(), domain), **d.some(attributes))


def microsoft(d: Drawer) -> None:
    op, x = d.rng.choice([*_MICROSOFT_UNARY, "BiasGelu"]), d.floating(1, 2, 3)
    bias = [d.weight(x.shape[-1:])] if op == "BiasGelu" else []
    d.one(op, x, *bias, domain=MICROSOFT)


def clip(d: Drawer) -> None:
    x = d.any()
    low, high = (d.constant(n, x.dtype) if d.rng.random() < 0.7 else None for n in (0, 1))
    d.one("Clip", x, *([low] if high is None else [low, high]))


def binary(d: Drawer) -> None:
    op = d.rng.choice(["Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Sum", "Mean", "PRelu"])
    x = d.floating()
    y = d.like(x)
    if op == "Pow":
        x = _moved(d, x, "|x|")
    if op == "Div":
        y = _moved(d, y, "|x|")
    if op in ("Sum", "Mean", "Max", "Min"):
        d.one(op, *[x, y, d.like(x)][: d.rng.randint(1, 3)])
    elif op == "PRelu":
        d.one(op, x, d.weight([1 if d.rng.random() < 0.3 else n for n in x.shape]))
    else:
        d.one(op, *((x, y) if op in ("Pow", "Div") or d.rng.random() < 0.5 else (y, x)))


def compared(d: Drawer) -> None:
    x = d.any()
    if x.dtype == "bool":
        op = d.rng.choice(["And", "Or", "Xor", "Equal", "Not"])
        d.one(op, *([x] if op == "Not" else [x, d.like(x)]))
        return
    op = d.rng.choice(["Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal"])
    d.one(op, x, d.like(x))


def where(d: Drawer) -> None:
    x = d.any()
    d.one("Where", d.like(x, "bool"), x, d.like(x))


def _whole(d: Drawer, low: int = -9, high: int = 9) -> Made:
    found = d.pick(lambda v: v.array.dtype.kind in "iu")
    if found is not None and d.rng.random() < 0.6:
        return found
    dtype = d.rng.choice(INTEGERS)
    return d.input(d.shape(), dtype, 0 if dtype[0] == "u" else low, high)


def integers(d: Drawer) -> None:
    """Add integer arithmetic; divisors are not zero."""
    x = _whole(d)
    op = d.rng.choice(
        ["Add", "Sub", "Mul", "Div", "Mod", "Max", "Min", "Pow", "Abs", "Neg", "Sign", "Relu",
         "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot"]
    )  # fmt: skip
    if op in ("Abs", "Neg", "Sign", "Relu", "BitwiseNot"):
        d.one(op, x)
        return
    positive = op in ("Div", "Mod", "Pow", "BitShift")
    low, high = (1, 4) if positive else (0 if x.dtype[0] == "u" else -9, 9)
    y = d.weight(x.shape[d.rng.randint(0, x.rank) :], x.dtype, low, high)
    attributes: dict[str, Any] = {}
    if op == "Mod":
        attributes = {"fmod": d.rng.choice([0, 1])}
    if op == "BitShift":
        attributes = {"direction": d.rng.choice(["LEFT", "RIGHT"])}
    d.one(op, x, y, **attributes)


def mod(d: Drawer) -> None:
    x = d.floating()
    y = d.weight(x.shape[d.rng.randint(0, x.rank) :], x.dtype, 0.7, 3)
    d.one("Mod", x, y, fmod=1)


def cast(d: Drawer) -> None:
    from onnx import TensorProto

    x = d.any()
    to = d.rng.choice(["FLOAT", "DOUBLE", "FLOAT16", "INT64", "INT32", "INT8", "BOOL", "BFLOAT16"])
    if to == "INT8" or (to == "BFLOAT16" and x.floating):
        x = d.one("Clip", x, d.constant(-9, x.dtype), d.constant(9, x.dtype))
    if to == "BFLOAT16":  # ONNX Runtime returns none
        return
    d.one("Cast", x, to=int(getattr(TensorProto, to)))


def reduction(d: Drawer) -> None:
    rng = d.rng
    op = rng.choice(["Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp",
                     "SumSquare"])  # fmt: skip
    x = d.any() if rng.random() < 0.3 else d.floating()
    if x.array.size == 0 and op == "Mean":  # of nothing
        raise Unfit
    if op == "LogSum":
        x = _moved(d, x, "|x|")
    axes = rng.sample(range(x.rank), rng.randint(0, x.rank))
    axes = [axis - x.rank if rng.random() < 0.5 else axis for axis in axes]
    attributes: dict[str, Any] = d.some({"keepdims": (0, 1)})
    if op == "Sum" or d.opset >= 18:
        attributes |= d.some({"noop_with_empty_axes": (0, 1)})
        given = [] if not axes and rng.random() < 0.5 else [d.constant(np.array(axes, "int64"))]
        d.one(f"Reduce{op}", x, *given, **attributes)
        return
    if axes:
        attributes["axes"] = axes
    d.one(f"Reduce{op}", x, **attributes)


def along(d: Drawer) -> None:
    """Add an operator along one axis."""
    rng, x = d.rng, d.floating(1, 2, 3, 4)
    axis = d.axis(x)
    op = rng.choice(["Softmax", "LogSoftmax", "Hardmax", "LpNormalization", "ArgMax", "ArgMin",
                     "CumSum", "TopK", "MeanVarianceNormalization"])  # fmt: skip
    if op == "CumSum":
        where = d.constant(axis, rng.choice(["int64", "int32"]))
        d.one(op, x, where, **d.some({"exclusive": (0, 1), "reverse": (0, 1)}))
    elif op == "TopK":
        count = d.constant([rng.randint(1, max(1, x.shape[axis]))])
        d.node(op, x, count, outputs=2, axis=axis, **d.some({"largest": (0, 1)}))
    elif op in ("ArgMax", "ArgMin"):
        d.one(op, x, axis=axis, **d.some({"keepdims": (0, 1), "select_last_index": (0, 1)}))
    elif op == "LpNormalization":
        d.one(op, x, axis=axis, p=rng.choice([1, 2]))
    elif op == "MeanVarianceNormalization":
        if x.array.size < 2:  # the deviation of one number is 0
            raise Unfit
        d.one(op, x, axes=list(range(x.rank)))
    else:
        d.one(op, x, **d.some({"axis": (axis,)}))


# Bodies of Scans: of the state s, slices x and factors f, they make the next state n and y. Those
# with a Tanh of the state are unrolled.
_BODIES: dict[str, tuple[tuple[str, str, str], ...]] = {
    "linear": (("Mul", "s f", "t"), ("Add", "t x", "n"), ("Identity", "n", "y")),
    "scaled": (("Add", "x s", "t"), ("Mul", "f t", "n"), ("Sub", "n s", "y")),
    "sum": (("Tanh", "x", "t"), ("Sub", "s t", "n"), ("Mul", "s f", "y")),
    "product": (("Mul", "s f", "n"), ("Add", "n x", "y")),
    "Max": (("Max", "s x", "n"), ("Mul", "n f", "y")),
    "Min": (("Min", "x s f", "n"), ("Identity", "s", "y")),
    "unrolled": (("Mul", "s f", "t"), ("Add", "t x", "u"), ("Tanh", "u", "n"), ("Neg", "n", "y")),
}


def scan(d: Drawer) -> None:
    """Add a Scan, from either end and along different axes."""
    rng, x = d.rng, d.floating(1, 2, 3)
    kind = rng.choice(sorted(_BODIES))
    if 0 in x.shape or (d.special and kind in ("Max", "Min")):
        raise Unfit
    axis, other = rng.randrange(x.rank), rng.randrange(x.rank)
    rest = [n for i, n in enumerate(x.shape) if i != axis]
    factors = [*rest[:other], x.shape[axis], *rest[other:]]
    typed = {name: (name, x.dtype, len(rest)) for name in "sxfny"}
    body = {
        "inputs": [typed[name] for name in "sxf"],
        "outputs": [typed[name] for name in "ny"],
        "nodes": [(op, tuple(ins.split()), (out,)) for op, ins, out in _BODIES[kind]],
    }
    d.node(
        "Scan",
        d.weight(rest),
        x,
        d.weight(factors, None, 0.3, 0.95),
        outputs=2,
        body=body,
        num_scan_inputs=2,
        scan_input_axes=[axis, other - x.rank],
        scan_input_directions=[rng.choice([0, 1]), rng.choice([0, 1])],
        scan_output_axes=[rng.randint(-x.rank, x.rank - 1)],
        scan_output_directions=[rng.choice([0, 1])],
    )


def places(d: Drawer) -> None:
    """Add an operator that reads or writes at places given by integers."""
    x = d.any(1, 2, 3, 4)
    if 0 in x.shape:
        raise Unfit
    d.rng.choice([_gather, _gather, _gather_elements, _gather_nd, _scatter_elements, _scatter_nd,
                  _one_hot, _compress])(d, x)  # fmt: skip


def _index(d: Drawer, shape: list[int], extent: int) -> Made:
    low = -extent if d.rng.random() < 0.5 else 0
    return d.weight(shape, d.rng.choice(["int64", "int64", "int32"]), low, extent)


def _gather(d: Drawer, x: Made) -> None:
    axis = d.axis(x)
    shape = d.rng.choice([[], [1], [3], [2, 2]])
    d.one("Gather", x, _index(d, shape, x.shape[axis]), axis=axis)


def _along(d: Drawer, x: Made, axis: int) -> list[int]:
    """Draw a shape of indices: at most x's extents, but any along the axis."""
    shape = [d.rng.randint(1, n) for n in x.shape]
    shape[axis] = d.rng.choice([1, 2, 4])
    return shape


def _gather_elements(d: Drawer, x: Made) -> None:
    axis = d.axis(x)
    d.one("GatherElements", x, _index(d, _along(d, x, axis), x.shape[axis]), axis=axis)


def _tuples(d: Drawer, extents: tuple[int, ...], lead: list[int]) -> Made:
    """Return a constant of random indices into these extents, as its last axis."""
    rng = d.rng
    many = math.prod(lead)
    drawn = [[rng.randint(-n, n - 1) for n in extents] for _ in range(many)]
    return d.constant(np.array(drawn, "int64").reshape(*lead, len(extents)))


def _gather_nd(d: Drawer, x: Made) -> None:
    batch = d.rng.choice([0, 0, min(1, x.rank - 1)])
    depth = d.rng.randint(1, x.rank - batch)
    lead = [*x.shape[:batch], *d.rng.choice([[1], [3], [2, 2]])]
    index = _tuples(d, x.shape[batch : batch + depth], lead)
    d.one("GatherND", x, index, batch_dims=batch)


def _how(d: Drawer, x: Made) -> dict[str, Any]:
    kinds = ["none", "none", "add", "mul", "max", "min"]
    how = d.rng.choice(kinds[: 6 if d.opset >= 18 else 4 if d.opset >= 16 else 2])
    return {} if how == "none" else {"reduction": how}


def _scatter_elements(d: Drawer, x: Made) -> None:
    axis, how = d.axis(x), _how(d, x)
    shape = _along(d, x, axis)
    if not how:
        shape[axis] = 1  # ONNX does not define which of several values for one place wins
    index = _index(d, shape, x.shape[axis])
    low, high = (0, 9) if x.dtype[0] == "u" else (-2, 2)
    d.one("ScatterElements", x, index, d.weight(shape, x.dtype, low, high), axis=axis, **how)


def _scatter_nd(d: Drawer, x: Made) -> None:
    how = _how(d, x)
    depth = d.rng.randint(1, x.rank)
    lead = d.rng.choice([[1], [3], [2, 2]]) if how else [1]
    index = _tuples(d, x.shape[:depth], lead)
    low, high = (0, 9) if x.dtype[0] == "u" else (-2, 2)
    d.one("ScatterND", x, index, d.weight([*lead, *x.shape[depth:]], x.dtype, low, high), **how)


def _one_hot(d: Drawer, x: Made) -> None:
    depth = d.rng.choice([1, 3, 8])
    index = d.input(
        d.rng.choice([[], [3], [2, 4]]), d.rng.choice(["int64", "int32"]), -depth, depth
    )
    values = d.constant([0, 1], d.rng.choice(["float32", "int64", "int32"]))
    d.one(
        "OneHot",
        index,
        d.constant([depth]),
        values,
        axis=d.rng.randint(-index.rank - 1, index.rank),
    )


def _compress(d: Drawer, x: Made) -> None:
    axis = d.axis(x)
    kept = [d.rng.random() < 0.6 for _ in range(x.shape[axis])]
    d.one("Compress", x, d.constant(kept, "bool"), axis=axis)


def sizes(d: Drawer) -> None:
    """Add operators on shapes: a reshape or an expansion by a computed one, or a range."""
    x, rng = d.any(1, 2, 3), d.rng
    shape = d.one("Shape", x)
    kind = rng.choice(["reshape", "expand", "constant", "range", "size", "eye", "flat"])
    if kind == "reshape":
        d.one("Reshape", d.one("Flatten", x), shape)
    elif kind == "flat":
        first = d.one("Gather", shape, d.constant([0]), axis=0)
        d.one("Reshape", x, d.one("Concat", first, d.constant([-1]), axis=0))
    elif kind == "expand":
        d.one("Expand", d.weight([1, x.shape[-1]]), shape)
    elif kind == "constant":
        made = d.one("ConstantOfShape", shape)
        if x.dtype == "float32":
            d.one("Add", x, made)
    elif kind == "range":
        n = d.one("Gather", shape, d.constant(0), axis=0)
        d.one("Range", d.constant(0), n, d.constant(1))
    elif kind == "size":
        d.one("Mul", d.one("Size", x), d.constant(2))
    else:
        from onnx import TensorProto

        made = d.input([rng.choice([1, 3]), rng.choice([2, 3])])
        d.one("EyeLike", made, dtype=int(TensorProto.FLOAT), k=rng.randint(-1, 1))


def product(d: Drawer) -> None:
    """Add a matrix product in one of its spellings."""
    rng, x = d.rng, d.floating(1, 2, 3, 4)
    n, out = x.shape[-1], rng.choice([1, 3, 8, 16, 17])
    kind = rng.choice(["MatMul", "MatMul", "Gemm", "Einsum", "Fused"])
    if kind == "Gemm" and x.rank == 2:
        flips = rng.choice([0, 0, 1]), rng.choice([0, 1])
        rows, n = x.shape[:: -1 if flips[0] else 1]
        w = d.weight([out, n] if flips[1] else [n, out], None, -1, 1)
        c = [d.weight(rng.choice([[], [1], [out], [1, out], [rows, 1], [rows, out]]))]
        scales = d.some({"alpha": (0.5, 2.0), "beta": (0.5, -1.0)})
        d.one("Gemm", x, w, *c[: rng.choice([0, 1, 1])], transA=flips[0], transB=flips[1], **scales)
    elif kind == "Einsum":
        texts = {1: "i,ij->j", 2: "ij,jk->ki", 3: "bij,jk->bik", 4: "...ij,jk->...ki"}
        d.one("Einsum", x, d.weight([n, out], None, -1, 1), equation=texts[x.rank])
    elif kind == "Fused" and x.rank > 1:
        flip = rng.choice([0, 1])
        w = d.weight([out, n] if flip else [n, out], None, -1, 1)
        d.one("FusedMatMul", x, w, domain=MICROSOFT, transB=flip, alpha=0.5)
    else:
        lead = [1 if rng.random() < 0.3 else k for k in x.shape[:-2]]
        w = d.weight(rng.choice([[n], [n, out], [n, out], [*lead, n, out]]), None, -1, 1)
        d.one("MatMul", x, w)
