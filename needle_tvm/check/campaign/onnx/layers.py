"""Recipes of ONNX's layers for random graphs, and the recipes altogether.

`programs` calls `draw`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from needle_tvm.check.campaign.onnx import recipes, views
from needle_tvm.check.campaign.onnx.draw import MICROSOFT, Drawer, Made, Recipes, Unfit
from needle_tvm.check.campaign.onnx.graphs import GraphProgram


def draw(seed: int) -> GraphProgram:
    """Return the graph of a seed."""
    return Drawer(seed).program(_RECIPES)


def _image(d: Drawer, dims: int) -> Made:
    """Return a tensor of shape (batch, channels, ...)."""
    found = d.pick(lambda v: v.dtype == d.dtype and v.rank == dims + 2 and 0 not in v.shape)
    if found is not None and d.rng.random() < 0.7:
        return found
    most = {1: 40, 2: 12, 3: 6}[dims]
    batch, channels = d.rng.choice([1, 1, 2, 3]), d.rng.choice([1, 2, 3, 4, 6, 8])
    return d.input([batch, channels, *(d.rng.randint(1, most) for _ in range(dims))])


def _window(d: Drawer, dims: int, pooled: Made | None = None) -> dict[str, Any]:
    """Draw the attributes of a window that moves over an image; that of a pool fits in it."""
    rng, is_pool = d.rng, pooled is not None
    kernel = [rng.choice([1, 2, 3, 3, 5]) for _ in range(dims)]
    if pooled is not None:  # ONNX Runtime makes one window of none
        kernel = [min(k, n) for k, n in zip(kernel, pooled.shape[2:], strict=True)]
    found: dict[str, Any] = {"kernel_shape": kernel}
    if rng.random() < 0.6:
        found["strides"] = [rng.choice([1, 2, 2, 3]) for _ in range(dims)]
    if pooled is not None:  # a stride above leaves the last window of a rounded size to the reader
        strides = found.get("strides", [1] * dims)
        found["strides"] = [min(s, k) for s, k in zip(strides, kernel, strict=True)]
    if rng.random() < 0.25 and not is_pool:
        found["dilations"] = [rng.choice([1, 2]) for _ in range(dims)]
    if rng.random() < 0.2:
        found["auto_pad"] = rng.choice(["SAME_UPPER", "SAME_LOWER", "VALID"])
    elif rng.random() < 0.6:
        most = [(k - 1) // 2 if is_pool else k for k in kernel]
        found["pads"] = [rng.randint(0, n) for n in most * 2]
    return found


def convolution(d: Drawer) -> None:
    rng, dims = d.rng, d.rng.choice([1, 2, 2, 2, 3])
    x, window = _image(d, dims), _window(d, dims)
    channels, kernel = x.shape[1], window["kernel_shape"]
    groups = rng.choice([g for g in {1, 2, channels} if channels % g == 0] + [1])
    out = groups * rng.choice([1, 2, 3, 8])
    if rng.random() < 0.5:
        del window["kernel_shape"]  # that of the weight
    options: dict[str, Any] = {"group": groups} if groups > 1 or rng.random() < 0.3 else {}
    bias = [d.weight([out])] if rng.random() < 0.7 else []
    if rng.random() < 0.3:
        w = d.weight([channels, out // groups, *kernel], None, -0.5, 0.5)
        strides = window.get("strides", [1] * dims)
        if window.get("auto_pad", "VALID") != "VALID":  # ONNX Runtime takes off no negative padding
            del window["auto_pad"]
        if rng.random() < 0.4:
            window["output_padding"] = [rng.randrange(s) for s in strides]
        made = d.one("ConvTranspose", x, w, *bias, **window, **options)
    else:
        w = d.weight([out, channels // groups, *kernel], None, -0.5, 0.5)
        made = d.one("Conv", x, w, *bias, **window, **options)
    if rng.random() < 0.4:
        made = _batch_norm(d, made)
    if rng.random() < 0.5:
        d.one(rng.choice(["Relu", "LeakyRelu", "Sigmoid", "HardSwish"]), made)


def pooling(d: Drawer) -> None:
    rng, dims = d.rng, d.rng.choice([1, 2, 2, 2, 3])
    x, op = _image(d, dims), d.rng.choice(["MaxPool", "MaxPool", "AveragePool", "LpPool", "Global"])
    if op == "Global":
        d.one(rng.choice(["GlobalAveragePool", "GlobalMaxPool"]), x)
        return
    window = _window(d, dims, x)
    if "auto_pad" not in window and op == "MaxPool" and rng.random() < 0.2:
        halves = [(n + 1) // 2 for n in x.shape[2:]]
        window["kernel_shape"] = [
            min(k, n) for k, n in zip(window["kernel_shape"], halves, strict=True)
        ]
        window["dilations"] = [2] * dims
    if op != "LpPool" and rng.random() < 0.3:
        window["ceil_mode"] = 1
    if op == "AveragePool" and rng.random() < 0.4:
        window["count_include_pad"] = 1
    if op == "LpPool" and rng.random() < 0.5:
        window["p"] = 1
    if op == "MaxPool" and rng.random() < 0.25:
        d.node(op, x, outputs=2, **window)
    else:
        d.one(op, x, **window)


def _batch_norm(d: Drawer, x: Made) -> Made:
    channels = [x.shape[1]]
    parts = [d.weight(channels) for _ in range(3)] + [d.weight(channels, None, 0.5, 1.5)]
    return d.one("BatchNormalization", x, *parts, epsilon=d.rng.choice([1e-5, 1e-2]))


def normalization(d: Drawer) -> None:
    rng, x = d.rng, d.floating(2, 3, 4)
    if 0 in x.shape:
        raise Unfit
    channels, axis = x.shape[1], rng.randint(-x.rank, x.rank - 1)
    op = rng.choice(["batch", "instance", "layer", "layer", "group", "lrn", "rms", "skip"])
    if op == "batch":
        _batch_norm(d, x)
    elif op == "instance" and x.rank > 2 and np.prod(x.shape[2:]) > 1:
        parts = [d.weight([channels]), d.weight([channels])]
        d.one("InstanceNormalization", x, *parts, epsilon=1e-2)
    elif op == "layer" and d.opset >= 17:
        parts = [d.weight(x.shape[axis:]) for _ in range(rng.choice([1, 2]))]
        d.node("LayerNormalization", x, *parts, outputs=rng.choice([1, 1, 3]), axis=axis)
    elif op == "group" and d.opset >= 18 and x.rank > 2:
        groups = rng.choice([g for g in range(1, channels + 1) if channels % g == 0])
        shape = [channels] if d.opset >= 21 else [groups]
        d.one("GroupNormalization", x, d.weight(shape), d.weight(shape), num_groups=groups)
    elif op == "rms" and d.opset >= 23:
        d.one("RMSNormalization", x, d.weight(x.shape[axis:]), axis=axis)
    elif op == "skip" and x.rank == 3:
        parts = [d.weight(x.shape), *(d.weight(x.shape[-1:]) for _ in range(rng.choice([1, 2, 3])))]
        d.one("SkipLayerNormalization", x, *parts, domain=MICROSOFT)
    elif op == "lrn" and x.rank == 4:
        d.one("LRN", x, size=rng.choice([1, 3, 5]), alpha=0.1, beta=0.5, bias=1.5)
    else:
        raise Unfit


_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def recurrent(d: Drawer) -> None:
    rng = d.rng
    op = rng.choice(["LSTM", "LSTM", "GRU", "GRU", "RNN"])
    steps, batch = rng.choice([1, 2, 4, 6]), rng.choice([1, 1, 2, 3])
    width, hidden = rng.choice([1, 3, 8]), rng.choice([1, 3, 8, 16])
    x = d.pick(lambda v: v.dtype == d.dtype and v.rank == 3 and 0 not in v.shape)
    if x is None or max(x.shape) > 16 or rng.random() < 0.5:
        x = d.input([steps, batch, width])
    steps, batch, width = x.shape
    direction = rng.choice(["forward", "forward", "reverse", "bidirectional"])
    n, gates = (2 if direction == "bidirectional" else 1), _GATES[op]
    given: list[Made | None] = [
        d.weight([n, gates * hidden, width], None, -0.7, 0.7),
        d.weight([n, gates * hidden, hidden], None, -0.7, 0.7),
    ]
    given.append(d.weight([n, 2 * gates * hidden]) if rng.random() < 0.7 else None)
    given.append(d.weight([batch], "int32", 1, steps + 1) if rng.random() < 0.2 else None)
    states = 2 if op == "LSTM" else 1
    with_state = rng.random() < 0.4
    given += [d.weight([n, batch, hidden]) if with_state else None for _ in range(states)]
    if op == "LSTM":
        given.append(d.weight([n, 3 * hidden]) if rng.random() < 0.2 else None)
    while given[-1] is None:
        given.pop()
    options: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
    if op == "GRU":
        options["linear_before_reset"] = rng.choice([0, 1, 1])
    if rng.random() < 0.15:
        options["clip"] = 0.7
    if op == "RNN" and rng.random() < 0.3:
        options["activations"] = ["Relu"] * n
    made = d.node(op, x, *given, outputs=rng.choice([1, states + 1]), **options)
    if rng.random() < 0.5:
        d.one("Squeeze", made[0], d.constant([1])) if n == 1 else d.one(
            "Transpose", made[0], perm=[0, 2, 1, 3]
        )


def attention(d: Drawer) -> None:
    """Add attention: ONNX's own, that of com.microsoft, or spelt out."""
    rng = d.rng
    heads, width = rng.choice([1, 2, 4]), rng.choice([2, 4, 8])
    batch, length, keys = rng.choice([1, 2]), rng.choice([1, 3, 7]), rng.choice([1, 4, 7])
    kind = rng.choice(["onnx", "onnx", "microsoft", "spelt", "spelt", "rotary"])
    if kind == "onnx" and d.opset >= 23:
        groups = rng.choice([g for g in (1, heads) if heads % g == 0])
        q = d.input([batch, heads, length, width])
        k, v = (d.input([batch, groups, keys, width]) for _ in "kv")
        given = [d.weight([length, keys])] if rng.random() < 0.4 else []
        options: dict[str, Any] = {"is_causal": 1} if rng.random() < 0.3 else {}
        d.one("Attention", q, k, v, *given, **options)
    elif kind == "rotary" and d.opset >= 23:
        x = d.input([batch, heads, length, width])
        cos, sin = (d.weight([batch, length, width // 2]) for _ in "cs")
        options = {"interleaved": rng.choice([0, 0, 1])}
        d.one("RotaryEmbedding", x, cos, sin, **options)
    elif kind == "microsoft":
        size = heads * width
        x = d.input([batch, length, size])
        parts = [d.weight([size, 3 * size], None, -0.5, 0.5), d.weight([3 * size])]
        options = {"unidirectional": 1} if rng.random() < 0.3 else {}
        d.one("Attention", x, *parts, domain=MICROSOFT, num_heads=heads, **options)
    else:
        _spelt(d, [batch, length, heads, width], keys)


def _spelt(d: Drawer, shape: list[int], keys: int) -> None:
    batch, _, heads, width = shape
    q = d.one("Transpose", d.input(shape), perm=[0, 2, 1, 3])
    k = d.one("Transpose", d.input([batch, keys, heads, width]), perm=[0, 2, 3, 1])
    v = d.input([batch, heads, keys, width])
    scores = d.one("Mul", d.one("MatMul", q, k), d.constant(width**-0.5, d.dtype))
    if d.rng.random() < 0.5:
        mask = d.weight([batch, 1, 1, keys], "bool")
        scores = d.one("Where", mask, scores, d.constant(-100.0, d.dtype))
    weights = d.one("Softmax", scores, axis=-1)
    out = d.one("Transpose", d.one("MatMul", weights, v), perm=[0, 2, 1, 3])
    d.one("Reshape", out, d.constant([0, 0, -1]))


def resized(d: Drawer) -> None:
    rng, dims = d.rng, d.rng.choice([1, 2, 2, 2])
    x = _image(d, dims)
    mode = rng.choice(
        ["nearest", "linear", "linear", "cubic"] if dims == 2 else ["nearest", "linear"]
    )
    options: dict[str, Any] = {"mode": mode}
    by_scales = rng.random() < 0.5
    # With scales, ONNX's own tests align the corners of the image before its size is rounded.
    modes = ["half_pixel", "asymmetric", "pytorch_half_pixel", *["align_corners"] * (not by_scales)]
    options["coordinate_transformation_mode"] = rng.choice(modes)
    if mode == "nearest":
        options["nearest_mode"] = rng.choice(
            ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]
        )
    if mode == "cubic" and rng.random() < 0.5:
        options |= {"cubic_coeff_a": -0.5, "exclude_outside": rng.choice([0, 1])}
    # Of halves, ONNX Runtime rounds the weights of the smoothed.
    is_wide = d.opset >= 18 and d.dtype != "float16"
    if is_wide and mode != "nearest" and rng.random() < 0.25:
        options["antialias"] = 1
    if by_scales:
        scales = [1.0, 1.0, *(rng.choice([0.5, 1.5, 2.0, 3.0]) for _ in range(dims))]
        d.one("Resize", x, None, d.constant(scales, "float32"), **options)
    else:
        sizes = [*x.shape[:2], *(rng.choice([1, 2, 5, 8]) for _ in range(dims))]
        d.one("Resize", x, None, None, d.constant(sizes), **options)


def sampled(d: Drawer) -> None:
    rng, x = d.rng, _image(d, 2)
    grid = d.input([x.shape[0], rng.randint(1, 5), rng.randint(1, 5), 2], None, -1.3, 1.3)
    linear, cubic = ("linear", "cubic") if d.opset >= 20 else ("bilinear", "bicubic")
    d.one(
        "GridSample",
        x,
        grid,
        mode=rng.choice([linear, linear, cubic, "nearest"]),
        padding_mode=rng.choice(["zeros", "border", "reflection"]),
        align_corners=rng.choice([0, 1]),
    )


def regions(d: Drawer) -> None:
    rng, x = d.rng, _image(d, 2)
    count = rng.choice([1, 2, 3])
    corners = np.sort(np.array([[rng.uniform(0, 8) for _ in range(4)] for _ in range(count)]), 1)
    boxes = d.constant(corners, d.dtype)
    batch = d.constant([rng.randrange(x.shape[0]) for _ in range(count)])
    sizes: dict[str, Any] = {
        "output_height": rng.choice([1, 2, 3]),
        "output_width": rng.choice([1, 2]),
    }
    mode = rng.choice(["avg", "max"])
    d.one("RoiAlign", x, boxes, batch, mode=mode, sampling_ratio=1 if mode == "max" else 2, **sizes)


def quantised(d: Drawer) -> None:
    """Add quantisation of a value: by a scale and back, by its own range, or around a product."""
    rng, x = d.rng, d.floating(1, 2, 3, 4)
    if 0 in x.shape or d.dtype != "float32":
        raise Unfit
    dtype = rng.choice(["uint8", "int8"])
    kind = rng.choice(["pair", "pair", "dynamic", "integer", "qlinear"])
    n, out = rng.choice([1, 4, 8, 17]), rng.choice([1, 3, 8])
    a = d.input([rng.choice([1, 3]), n], "uint8", 0, 255)
    if kind == "pair":
        axis = rng.randrange(x.rank)
        many = [x.shape[axis]] if rng.random() < 0.4 else []
        scale = d.leaf("weight", many, None, 0.01, 0.1)
        low, high = (100, 150) if dtype == "uint8" else (-20, 20)
        zero = d.leaf("weight", many, dtype, low, high)
        q = d.one("QuantizeLinear", x, scale, zero, axis=axis)
        d.one("DequantizeLinear", q, scale, zero, axis=axis)
    elif kind == "dynamic":
        made = d.node("DynamicQuantizeLinear", x, outputs=3)
        d.one("DequantizeLinear", *(made[i] for i in (0, 1, 2)))
    elif kind == "integer":
        b = d.weight([n, out], "int8", -99, 99)
        d.one("MatMulInteger", a, b, d.constant(rng.choice([0, 7]), "uint8"))
    elif kind == "qlinear":
        b = d.weight([n, out], "uint8", 0, 255)
        scales = [d.constant(s, "float32") for s in (0.02, 0.03, 0.11)]
        zeros = [d.constant(rng.choice([120, 128]), "uint8") for _ in range(3)]
        parts = zip((a, b), scales, zeros, strict=False)
        d.one("QLinearMatMul", *(v for part in parts for v in part), scales[2], zeros[2])


def losses(d: Drawer) -> None:
    rng = d.rng
    batch, classes = rng.choice([1, 3, 5]), rng.choice([2, 3, 8])
    rest = rng.choice([[], [], [3], [2, 2]])
    x = d.input([batch, classes, *rest])
    target = d.input([batch, *rest], rng.choice(["int64", "int32"]), 0, classes)
    given = [d.weight([classes], None, 0.3, 1.5)] if rng.random() < 0.4 else []
    options: dict[str, Any] = {"reduction": rng.choice(["none", "mean", "sum"])}
    if rng.random() < 0.3:
        options["ignore_index"] = rng.choice([0, 1, -1])
    if rng.random() < 0.5:
        d.node("SoftmaxCrossEntropyLoss", x, target, *given, outputs=rng.choice([1, 2]), **options)
    else:
        log = d.one("LogSoftmax", x, axis=1)
        d.one("NegativeLogLikelihoodLoss", log, target, *given, **options)


def signals(d: Drawer) -> None:
    rng = d.rng
    kind = rng.choice(["window", "dft", "det", "col2im"])
    if kind == "window":
        op = rng.choice(["HannWindow", "HammingWindow", "BlackmanWindow"])
        made = d.one(op, d.constant(rng.choice([4, 9])), periodic=rng.choice([0, 1]))
        # Its zeros are small numbers in float32.
        d.one("Mul", d.one("Add", made, d.constant(1, "float32")), d.input([made.shape[0]]))
    elif kind == "dft":
        n = rng.choice([1, 4, 6, 9])
        x = d.input([rng.choice([1, 2]), n, rng.choice([1, 2])])
        options: dict[str, Any] = {"onesided": 1} if x.shape[2] == 1 and rng.random() < 0.5 else {}
        if d.opset < 20:
            d.one("DFT", x, axis=1, **options)
        else:
            d.one("DFT", x, None, d.constant(1), **options)
    elif kind == "det":
        n = rng.choice([1, 2, 3, 4])
        d.one("Det", d.input([*rng.choice([[], [2]]), n, n]))
    else:
        x = d.input([1, 2 * 4, 6])
        d.one("Col2Im", x, d.constant([4, 3]), d.constant([2, 2]))


_RECIPES: Recipes = (
    ((recipes.unary, recipes.binary), 16),
    ((recipes.microsoft, recipes.clip, recipes.mod, recipes.cast), 5),
    ((recipes.compared, recipes.where, recipes.integers), 8),
    ((recipes.reduction, recipes.along), 12),
    ((views.view,), 16),
    ((recipes.places,), 10),
    ((recipes.scan,), 3),
    ((recipes.sizes,), 4),
    ((recipes.product,), 8),
    ((convolution, convolution, pooling), 12),
    ((normalization,), 8),
    ((recurrent,), 5),
    ((attention,), 5),
    ((resized, resized, sampled, regions), 7),
    ((quantised, losses, signals), 6),
)
