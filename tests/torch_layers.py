"""A table of layers and losses beside PyTorch's, which the eager and the compiled tests share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import needle as ndl
from needle import nn
from needle.nn.layout import torch_entries
from needle.testing import assert_close

F32 = "float32"


@dataclass(frozen=True)
class Case:
    """`ours` makes a layer from needle.nn, `theirs` one from torch.nn; `inputs` makes arguments:
    arrays, and all else as it is. Gradients are taken for floating arrays."""

    ours: Callable[[], Any]
    theirs: Callable[[Any], Any]
    inputs: Callable[[Any], tuple[Any, ...]]
    train: bool = False
    constant: tuple[int, ...] = ()  # inputs without a gradient
    keywords: tuple[str, ...] = ()  # names of the last inputs
    repeats: bool = False  # whether one tensor is given more than once


def normal(*shape: int) -> Callable[[Any], tuple[Any, ...]]:
    return lambda rng: (rng.normal(0, 2, shape).astype(F32),)


def normals(*shapes: tuple[int, ...]) -> Callable[[Any], tuple[Any, ...]]:
    return lambda rng: tuple(rng.normal(size=shape).astype(F32) for shape in shapes)


def numbers(high: int, *shape: int) -> Callable[[Any], tuple[Any, ...]]:
    return lambda rng: (rng.integers(0, high, shape),)


def both(name: str, inputs: Any, *args: Any, **kwargs: Any) -> tuple[str, Case]:
    """A case whose arguments are the same on both sides."""
    shown = ", ".join([*map(repr, args), *(f"{k}={v!r}" for k, v in kwargs.items())])
    case = Case(
        lambda: getattr(nn, name)(*args, **kwargs),
        lambda t: getattr(t, name)(*args, **kwargs),
        inputs,
    )
    return f"{name}({shown})", case


def _floor(rng: Any) -> tuple[Any, ...]:
    """Values on both sides of every kink of an activation, but not at one."""
    x = np.concatenate([np.linspace(-9.7, 9.8, 41), [30.3, -30.3, 0.01, -0.01]])
    return (rng.permutation(x).reshape(5, 9).astype(F32),)


ACTIVATIONS = [
    *(
        both(name, _floor)
        for name in (
            "ReLU ReLU6 LeakyReLU ELU SELU CELU GELU SiLU Mish Softplus Hardswish Hardsigmoid "
            "Hardtanh Sigmoid Tanh Softsign Tanhshrink LogSigmoid PReLU"
        ).split()
    ),
    both("LeakyReLU", _floor, 0.3),
    both("ELU", _floor, alpha=0.7),
    both("CELU", _floor, 2.5),
    both("Softplus", _floor, beta=2.0, threshold=5.0),
    both("Hardtanh", _floor, -2.0, 0.5),
    both("Threshold", _floor, 0.5, -3.0),
    both("GELU", _floor, approximate="tanh"),
    both("PReLU", normal(2, 3, 4), 3),
    both("GLU", normal(3, 4)),
    both("GLU", normal(2, 6, 3), 1),
    both("Hardshrink", _floor),
    both("Softshrink", _floor, 0.3),
    both("RReLU", _floor, 0.1, 0.4),
    both("Softmax2d", normal(2, 3, 2, 2)),
    both("Softmin", normal(3, 4), dim=1),
    both("Softmax", normal(3, 4), dim=0),
    both("LogSoftmax", normal(3, 4), dim=-1),
]
BASIC = [
    both("Identity", normal(2, 3)),
    both("Linear", normal(2, 3, 5), 5, 4),
    both("Linear", normal(3, 5), 5, 4, bias=False),
    both("Bilinear", normals((2, 6, 3), (2, 6, 4)), 3, 4, 5),
    both("Flatten", normal(2, 3, 4)),
    both("Flatten", normal(2, 3, 4, 2), 1, 2),
    both("Unflatten", normal(2, 6, 3), 1, (2, -1)),
    both("CosineSimilarity", normals((4, 5, 2), (4, 5, 2))),
    both("PairwiseDistance", normals((4, 5), (4, 5)), 1.5, keepdim=True),
    both("ChannelShuffle", normal(2, 6, 3), 3),
    both("Unfold", normal(2, 3, 4, 5), 2, 1, 1, 2),
    both("Fold", normal(2, 12, 9), (4, 5), 2, 1, 1, 2),
    both("LocalResponseNorm", normal(2, 5, 3, 2), 3, alpha=0.1, k=0.7),
    both("ZeroPad2d", normal(2, 4, 5), (-1, 2, 1, -2)),
    both("ConstantPad3d", normal(2, 4, 3, 2), (1, 0, 2, -1, 0, 1), 2.0),
    both("ReflectionPad2d", normal(2, 3, 4, 5), (2, 1, 0, 3)),
    both("ReplicationPad3d", normal(3, 4, 3, 4), 2),
    both("CircularPad1d", normal(2, 3, 4), (-1, 3)),
    both("Embedding", numbers(6, 3, 4), 6, 5),
    both("Embedding", numbers(6, 3, 4), 6, 5, padding_idx=2),
    both("Embedding", numbers(6, 3, 4), 6, 5, max_norm=1.5),
    both("Embedding", numbers(6, 3, 4), 6, 5, padding_idx=2, max_norm=2.0, norm_type=1.0),
    both("EmbeddingBag", numbers(6, 3, 4), 6, 5, max_norm=1.0, mode="sum"),
    both("EmbeddingBag", numbers(6, 3, 4), 6, 5),
    both("EmbeddingBag", numbers(6, 3, 4), 6, 5, mode="sum", padding_idx=1),
    both("EmbeddingBag", numbers(6, 3, 4), 6, 5, mode="max"),
    *(
        both("EmbeddingBag", lambda r: (r.integers(0, 6, 9), np.array([0, 3, 3, 7])), 6, 5, mode=m)
        for m in ("sum", "mean", "max")
    ),
    both("Conv2d", normal(2, 4, 7, 6), 4, 6, 3),
    both("Conv2d", normal(2, 4, 7, 6), 4, 6, (2, 3), (2, 1), (1, 0), (1, 2), 2, False),
    both("Conv2d", normal(2, 4, 7, 6), 4, 6, (4, 3), padding="same"),
    both("Conv1d", normal(2, 4, 9), 4, 6, 3, 2, 1, 2, 2),
    both("Conv1d", normal(2, 4, 9), 4, 6, 4, padding="same", bias=False),
    both("Conv3d", normal(2, 4, 5, 6, 7), 4, 6, (2, 3, 1), (2, 1, 2), (1, 0, 2), (2, 1, 1), 2),
    both("Conv3d", normal(1, 2, 4, 4, 4), 2, 3, 2, padding="same"),
    both("Conv1d", normal(2, 4, 6), 4, 6, 4, padding="same", padding_mode="circular"),
    both("Conv2d", normal(2, 4, 6, 5), 4, 6, 3, 2, 1, padding_mode="reflect"),
    both("Conv3d", normal(1, 2, 4, 3, 4), 2, 3, 2, padding=(2, 0, 1), padding_mode="replicate"),
    both("ConvTranspose1d", normal(2, 4, 5), 4, 6, 3, 2, 1, 1, 2),
    both("ConvTranspose2d", normal(2, 4, 5, 4), 4, 6, (2, 3), (2, 3), (0, 1), (1, 2), 2, True, 2),
    both("ConvTranspose2d", normal(2, 3, 4, 4), 3, 2, 3, bias=False),
    both("ConvTranspose3d", normal(1, 4, 3, 2, 4), 4, 6, (2, 3, 1), (2, 1, 2), 0, (1, 0, 0), 2),
    both("ConvTranspose3d", normal(2, 2, 3, 3, 2), 2, 3, 3, 1, 1, dilation=2),
    both("MaxPool1d", normal(2, 3, 9), 3, 2, 1),
    both("MaxPool2d", normal(2, 3, 6, 7), 2),
    both("MaxPool3d", normal(2, 3, 6, 5, 7), (2, 3, 2), (1, 2, 2), (1, 0, 1)),
    both("AvgPool1d", normal(2, 3, 9), 3, 2, 1),
    both("AvgPool2d", normal(2, 3, 6, 7), 3, 2, 1),
    both("AvgPool3d", normal(2, 3, 6, 5, 7), 3, 2, 1),
    both("AdaptiveAvgPool1d", normal(2, 3, 7), 3),
    both("AdaptiveAvgPool2d", normal(2, 3, 6, 8), (3, 2)),
    both("AdaptiveAvgPool2d", normal(2, 3, 7, 5), (4, None)),
    both("AdaptiveMaxPool2d", normal(2, 3, 6, 8), 2),
    both("AdaptiveMaxPool2d", normal(2, 3, 7, 5), 3),
    both("AdaptiveMaxPool1d", normal(2, 3, 7), 3),
    both("AdaptiveMaxPool3d", normal(1, 2, 5, 4, 3), (2, 3, 1)),
    both("AdaptiveAvgPool3d", normal(1, 2, 5, 4, 3), (2, None, 1)),
    both("LPPool1d", normal(2, 3, 9), 2.0, 3, 2),
    both("LPPool2d", normal(2, 3, 6, 7), 2.0, (2, 3), ceil_mode=True),
    both("LPPool3d", normal(1, 2, 4, 4, 4), 2.0, 2),
    both("MaxPool2d", normal(2, 3, 6, 7), 3, 2, 1, ceil_mode=True),
    both("AvgPool2d", normal(2, 3, 6, 8), 3, 2, 1, True, False),
    both("Upsample", normal(2, 3, 5), scale_factor=2),
    both("Upsample", normal(2, 3, 4, 5), (7, 3), mode="bicubic"),
    both("UpsamplingBilinear2d", normal(2, 3, 4, 5), scale_factor=2),
    both("UpsamplingNearest2d", normal(2, 3, 4, 5), (6, 5)),
    both("PixelShuffle", normal(2, 12, 2, 3), 2),
    both("PixelUnshuffle", normal(2, 3, 4, 6), 2),
]  # fmt: skip


def _trained(case: tuple[str, Case]) -> tuple[str, Case]:
    name, c = case
    return f"{name} train", Case(c.ours, c.theirs, c.inputs, train=True)


NORMS = [
    both("LayerNorm", normal(2, 3, 5), 5),
    both("LayerNorm", normal(2, 3, 5), (3, 5), eps=1e-3),
    both("LayerNorm", normal(2, 5), 5, bias=False),
    both("LayerNorm", normal(2, 5), 5, elementwise_affine=False),
    both("RMSNorm", normal(2, 3, 5), 5),
    both("RMSNorm", normal(2, 3, 5), (3, 5), eps=1e-3, elementwise_affine=False),
    both("GroupNorm", normal(2, 6, 3, 4), 3, 6),
    both("GroupNorm", normal(2, 6, 3), 2, 6, affine=False),
    both("InstanceNorm1d", normal(2, 3, 7), 3),
    both("InstanceNorm2d", normal(2, 3, 4, 5), 3, affine=True),
    both("InstanceNorm2d", normal(2, 3, 4, 5), 3, track_running_stats=True),
    both("InstanceNorm1d", normal(2, 3, 7), 3, track_running_stats=True, momentum=None),
    both("BatchNorm1d", normal(4, 3), 3, momentum=None),
    _trained(both("BatchNorm2d", normal(4, 3, 2, 3), 3, momentum=None)),
    *(
        make(both(f"BatchNorm{n}d", normal(*shape), 3, **options))
        for n, shape in ((1, (4, 3)), (1, (4, 3, 5)), (2, (4, 3, 2, 3)), (3, (2, 3, 2, 3, 2)))
        for options in ({}, {"affine": False})
        for make in (lambda case: case, _trained)
    ),
]


def _recurrent(name: str, state: int, **options: Any) -> tuple[str, Case]:
    rows = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)

    def inputs(rng: Any) -> tuple[Any, ...]:
        shape = (3, 4, 5) if options.get("batch_first") else (4, 3, 5)
        x = rng.normal(size=shape).astype(F32)
        given = tuple(rng.normal(size=(rows, 3, 6)).astype(F32) for _ in range(state))
        return (x, *([given] if state == 2 else given))

    return both(name, inputs, 5, 6, **options)


RECURRENT = [
    both("RNNCell", normals((3, 5), (3, 6)), 5, 6),
    both("RNNCell", normals((3, 5)), 5, 6, nonlinearity="relu", bias=False),
    both("LSTMCell", lambda r: (normals((3, 5))(r)[0], normals((3, 6), (3, 6))(r)), 5, 6),
    both("GRUCell", normals((3, 5), (3, 6)), 5, 6),
    both("GRUCell", normals((3, 5)), 5, 6, bias=False),
    *(
        _recurrent(name, state, **options)
        for name, states in (("RNN", 1), ("GRU", 1), ("LSTM", 2))
        for state, options in (
            (states, {}),
            (0, {"num_layers": 2, "bidirectional": True}),
            (states, {"num_layers": 2, "bidirectional": True, "batch_first": True}),
            (0, {"bias": False, "num_layers": 2}),
        )
    ),
]


def _attention(keywords: dict[str, Any] | None = None, **options: Any) -> tuple[str, Case]:
    """Attention of 3 queries to 5 keys, for a batch of 2; masks are True where nothing is seen."""
    keywords = keywords or {}
    first = options.get("batch_first", False)

    def inputs(rng: Any) -> tuple[Any, ...]:
        shapes = [(3, 8), (5, options.get("kdim", 8)), (5, options.get("vdim", 8))]
        arrays = [rng.normal(size=(2, *s) if first else (s[0], 2, s[1])) for s in shapes]
        return (*(a.astype(F32) for a in arrays), *keywords.values())

    name, case = both("MultiheadAttention", inputs, 8, 2, **options)
    return f"{name} {list(keywords)}", Case(
        case.ours, case.theirs, inputs, keywords=tuple(keywords)
    )


def _itself(*args: int) -> tuple[str, Case]:
    """Attention of a sequence to itself."""
    name, case = both("MultiheadAttention", lambda r: normal(4, 2, 8)(r) * 3, *args)
    return name, Case(case.ours, case.theirs, case.inputs, repeats=True)


PADDING = np.array([[False, False, True, False, True], [False] * 5])
HIDDEN = np.random.default_rng(0).random((3, 5)) < 0.3


def _layer(name: str, inputs: Any, keywords: dict[str, Any] | None = None, **options: Any) -> Any:
    keywords = keywords or {}
    given = {"d_model": 8, "nhead": 2, "dim_feedforward": 12, "dropout": 0.0, **options}

    def arguments(rng: Any) -> tuple[Any, ...]:
        return (*inputs(rng), *keywords.values())

    _, case = both(name, arguments, **given)
    shown = "".join(f", {k}={v!r}" for k, v in options.items())
    return f"{name}({shown[2:]}) {list(keywords)}", Case(
        case.ours, case.theirs, arguments, keywords=tuple(keywords)
    )


def _stack(part: str, inputs: Any, norm: bool) -> tuple[str, Case]:
    options = {"d_model": 8, "nhead": 2, "dim_feedforward": 12, "dropout": 0.0, "batch_first": True}

    def make(t: Any, **more: Any) -> Any:
        layer = getattr(t, f"Transformer{part}Layer")(**options)
        last = t.LayerNorm(8) if norm else None
        return getattr(t, f"Transformer{part}")(layer, 2, norm=last, **more)

    extra = {"enable_nested_tensor": False} if part == "Encoder" else {}
    return f"Transformer{part} norm={norm}", Case(
        lambda: make(nn), lambda t: make(t, **extra), inputs
    )


SQUARE = np.triu(np.full((4, 4), -np.inf, F32), 1)
TRANSFORMERS = [
    _attention(),
    _attention(batch_first=True, bias=False),
    _attention({"key_padding_mask": PADDING, "attn_mask": HIDDEN}, batch_first=True),
    _attention({"attn_mask": np.random.default_rng(1).normal(size=(4, 3, 5)).astype(F32)}),
    _attention({"average_attn_weights": False}, kdim=6, vdim=4),
    _attention({"need_weights": False}, kdim=6),
    _attention({"key_padding_mask": PADDING}, add_bias_kv=True, batch_first=True),
    _attention({"attn_mask": HIDDEN}, add_zero_attn=True),
    _attention({"attn_mask": HIDDEN}, add_bias_kv=True, add_zero_attn=True, kdim=6),
    _itself(8, 4),
    _layer("TransformerEncoderLayer", normal(4, 2, 8)),
    _layer(
        "TransformerEncoderLayer",
        normal(2, 4, 8),
        {"src_mask": SQUARE},
        batch_first=True,
        norm_first=True,
        activation="gelu",
    ),
    _layer("TransformerEncoderLayer", normal(2, 4, 8), bias=False, batch_first=True),
    _layer("TransformerDecoderLayer", normals((4, 2, 8), (5, 2, 8)), {"tgt_mask": SQUARE}),
    _layer(
        "TransformerDecoderLayer",
        normals((2, 3, 8), (2, 5, 8)),
        {"memory_key_padding_mask": PADDING},
        batch_first=True,
        norm_first=True,
    ),
    _stack("Encoder", normal(2, 4, 8), True),
    _stack("Decoder", normals((2, 4, 8), (2, 5, 8)), False),
]


def _probabilities(rng: Any, *shape: int) -> Any:
    return rng.uniform(0.05, 0.95, shape).astype(F32)


def _classes(x: Any, *shape: int, classes: int, ignored: int | None = None) -> Any:
    def inputs(rng: Any) -> tuple[Any, ...]:
        y = rng.integers(0, classes, shape)
        if ignored is not None:
            y.flat[1] = ignored
        return (*x(rng), y)

    return inputs


WEIGHT = np.array([0.5, 1.5, 0.25, 2.0], F32)


def loss(name: str, inputs: Any, constant: tuple[int, ...] = (1,), **options: Any) -> Any:
    """Cases for every reduction; arrays among the options become tensors."""
    for reduction in ("mean", "sum", "none"):

        def ours(reduction: str = reduction) -> Any:
            given = {
                k: ndl.Tensor(v) if isinstance(v, np.ndarray) else v for k, v in options.items()
            }
            return getattr(nn, name)(reduction=reduction, **given)

        def theirs(t: Any, reduction: str = reduction) -> Any:
            import torch

            given = {
                k: torch.tensor(v) if isinstance(v, np.ndarray) else v for k, v in options.items()
            }
            return getattr(t, name)(reduction=reduction, **given)

        shown = "".join(f", {k}={v}" for k, v in options.items())
        yield f"{name}({reduction}{shown})", Case(ours, theirs, inputs, constant=constant)


class OfLogits(nn.Module):
    """CTC of logits: PyTorch's gradient for log_probs holds only behind a log_softmax."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.loss = nn.CTCLoss(**options)

    def forward(self, x: Any, *rest: Any) -> Any:
        return self.loss(nn.functional.log_softmax(x, -1), *rest)


def _ctc_of_logits(reduction: str) -> tuple[str, Case]:
    def theirs(t: Any) -> Any:
        class Theirs(t.Module):
            def forward(self, x: Any, *rest: Any) -> Any:
                return t.functional.ctc_loss(x.log_softmax(-1), *rest, reduction=reduction)

        return Theirs()

    return f"CTCLoss({reduction})", Case(lambda: OfLogits(reduction=reduction), theirs, _ctc)


def _ctc(rng: Any) -> tuple[Any, ...]:
    x = rng.normal(size=(7, 3, 5))
    y = np.array([[1, 2, 2], [3, 3, 0], [4, 0, 0]])
    return x.astype(F32), y, np.array([7, 5, 6]), np.array([3, 2, 1])


def _labels(rng: Any, x: Any) -> tuple[Any, ...]:
    return (*x(rng), np.array([1, -1, 1, -1]))


def _projected_loss() -> Any:
    inputs = _classes(normal(5, 3), 5, classes=4, ignored=1)
    for bias in (False, True):
        options = {"bias": bias, "ignore_index": 1, "label_smoothing": 0.1}
        yield both("LinearCrossEntropyLoss", inputs, 3, 4, **options)


LABELS = np.array([[3, 0, -1, 1], [-1, 1, 2, 3], [0, 1, 2, 3]])


def _signs(x: Any) -> Callable[[Any], tuple[Any, ...]]:
    return lambda rng: (*x(rng), rng.choice([-1.0, 1.0], (3, 4)).astype(F32))


def _with_variance(*shape: int) -> Callable[[Any], tuple[Any, ...]]:
    return lambda rng: (*normals((3, 4), (3, 4))(rng), _probabilities(rng, *shape))


LOSSES = [
    case
    for group in (
        loss("MSELoss", normals((3, 4), (3, 4)), ()),
        loss("L1Loss", normals((3, 4), (3, 4)), ()),
        loss("SmoothL1Loss", normals((5, 4), (5, 4)), (), beta=0.7),
        loss("HuberLoss", normals((5, 4), (5, 4)), (), delta=0.6),
        loss("CrossEntropyLoss", _classes(normal(5, 4), 5, classes=4)),
        loss(
            "CrossEntropyLoss",
            _classes(normal(5, 4, 2), 5, 2, classes=4, ignored=-100),
            weight=WEIGHT,
            label_smoothing=0.2,
        ),
        loss(
            "CrossEntropyLoss",
            _classes(normal(5, 4), 5, classes=4, ignored=2),
            ignore_index=2,
            label_smoothing=0.1,
        ),
        loss(
            "CrossEntropyLoss",
            lambda r: (*normal(5, 4, 2)(r), _probabilities(r, 5, 4, 2)),
            (),
            weight=WEIGHT,
            label_smoothing=0.1,
        ),
        _projected_loss(),
        loss("NLLLoss", _classes(normal(5, 4), 5, classes=4, ignored=-100), weight=WEIGHT),
        loss("NLLLoss", _classes(normal(5, 4, 2, 3), 5, 2, 3, classes=4)),
        loss("BCELoss", lambda r: (_probabilities(r, 4, 3), _probabilities(r, 4, 3)), ()),
        loss("BCEWithLogitsLoss", lambda r: (*normal(4, 3)(r), _probabilities(r, 4, 3)), ()),
        loss(
            "BCEWithLogitsLoss",
            lambda r: (*normal(4, 4)(r), _probabilities(r, 4, 4)),
            (),
            weight=WEIGHT,
            pos_weight=WEIGHT[::-1].copy(),
        ),
        loss("KLDivLoss", lambda r: (*normal(4, 3)(r), _probabilities(r, 4, 3))),
        loss("KLDivLoss", normals((4, 3), (4, 3)), log_target=True),
        (_ctc_of_logits(reduction) for reduction in ("mean", "sum", "none")),
        loss("CosineEmbeddingLoss", lambda r: _labels(r, normals((4, 3), (4, 3))), margin=0.1),
        loss("TripletMarginLoss", normals((4, 3), (4, 3), (4, 3)), (), swap=True),
        loss("TripletMarginLoss", normals((4, 3), (4, 3), (4, 3)), (), p=3.0, margin=0.5),
        loss("TripletMarginWithDistanceLoss", normals((4, 3), (4, 3), (4, 3)), (), swap=True),
        loss("HingeEmbeddingLoss", _signs(normal(3, 4)), margin=0.6),
        loss("MarginRankingLoss", _signs(normals((3, 4), (3, 4))), (2,), margin=0.4),
        loss("SoftMarginLoss", _signs(normal(3, 4))),
        loss("MultiMarginLoss", _classes(normal(5, 4), 5, classes=4), p=2, weight=WEIGHT),
        loss("MultiMarginLoss", _classes(normal(4), classes=4), margin=0.3),
        loss("MultiLabelMarginLoss", lambda r: (*normal(3, 4)(r), LABELS)),
        loss(
            "MultiLabelSoftMarginLoss",
            lambda r: (*normal(3, 4)(r), _probabilities(r, 3, 4)),
            (),
            weight=WEIGHT,
        ),
        loss("PoissonNLLLoss", lambda r: (*normal(3, 4)(r), 4 * _probabilities(r, 3, 4))),
        loss(
            "PoissonNLLLoss",
            lambda r: (_probabilities(r, 3, 4), 4 * _probabilities(r, 3, 4)),
            log_input=False,
            full=True,
        ),
        *(
            loss("GaussianNLLLoss", _with_variance(*shape), (), full=full, eps=0.2)
            for shape, full in (((3, 4), False), ((3, 1), True), ((3,), True))
        ),
    )
    for case in group
]

CASES: dict[str, Case] = dict(ACTIVATIONS + BASIC + NORMS + RECURRENT + TRANSFORMERS + LOSSES)


class Pair:
    """A layer of needle's and one of PyTorch's with the same weights, drawn at random, which were
    moved by layout="torch"; and their inputs."""

    def __init__(self, case: Case, torch: Any, device: Any = None) -> None:
        rng = np.random.default_rng(5)
        self.torch, self.case, self.rng = torch, case, rng
        self.ours, self.theirs = case.ours(), case.theirs(torch.nn)
        with torch.no_grad():
            for name, value in self.theirs.state_dict().items():
                if value.is_floating_point():
                    low, high = (0.5, 1.5) if "var" in name else (-1, 1)
                    drawn = rng.uniform(low, high, value.shape) * (0.5 if value.ndim > 1 else 1)
                    value.copy_(torch.tensor(drawn))
        if device is not None:
            self.ours.to(device)
        self.ours.load_state_dict(self.theirs.state_dict(), layout="torch")
        self.ours.train(case.train), self.theirs.train(case.train)
        self.arrays = case.inputs(rng)

    def _arguments(self, make: Callable[[Any, bool], Any]) -> tuple[list[Any], dict[str, Any]]:
        made: dict[int, Any] = {}  # one array that is given twice is one tensor

        def convert(i: int, value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(convert(i, each) for each in value)
            if not isinstance(value, np.ndarray):
                return value
            learned = value.dtype.kind == "f" and i not in self.case.constant
            return made.setdefault(id(value), make(value, learned))

        values = [convert(i, value) for i, value in enumerate(self.arrays)]
        split = len(values) - len(self.case.keywords)
        return values[:split], dict(zip(self.case.keywords, values[split:], strict=True))

    def our_arguments(self, device: Any = None) -> tuple[list[Any], dict[str, Any]]:
        return self._arguments(lambda a, g: ndl.Tensor(a, device=device, requires_grad=g))

    def their_arguments(self) -> tuple[list[Any], dict[str, Any]]:
        return self._arguments(lambda a, g: self.torch.tensor(a, requires_grad=g))

    def expected(self) -> tuple[list[Any], list[Any], list[Any], dict[str, Any]]:
        """PyTorch's outputs, the weights of the sum of the outputs, and the gradients of that sum
        for inputs and, by name, for parameters."""
        args, kwargs = self.their_arguments()
        outputs = flat(self.theirs(*args, **kwargs))
        rng = np.random.default_rng(6)
        weights = [rng.normal(size=tuple(y.shape)).astype(F32) for y in outputs]
        total = sum((y * self.torch.tensor(w)).sum() for y, w in zip(outputs, weights, strict=True))
        if total.requires_grad:
            total.backward()
        grads = [x.grad.numpy() for x in learned([*args, *kwargs.values()])]
        named = {n: p.grad.numpy() for n, p in self.theirs.named_parameters() if p.grad is not None}
        return [y.detach().numpy() for y in outputs], weights, grads, named

    def check(self, outputs: Any, grads: Any, named: dict[str, Any], expected: Any) -> None:
        """Compare ours with PyTorch's; gradients of parameters are in our layout."""
        theirs, _, their_grads, their_named = expected
        assert len(outputs) == len(theirs) and len(grads) == len(their_grads)
        for mine, other in zip(outputs, theirs, strict=True):
            assert mine.shape == other.shape
            assert_close(mine, other, 300, scale=1.0)
        for mine, other in zip(grads, their_grads, strict=True):
            assert_close(mine, other, 1000, scale=1.0)
        entries, _ = torch_entries(self.ours)
        forms = {id(entry.tensor): entry for entry in entries}
        found = {}
        for name, parameter in self.ours.named_parameters():
            entry = forms[id(parameter)]
            grad = entry.form.outgoing(ndl.Tensor(named[name]))
            found[entry.name] = grad.numpy()
        assert found.keys() == their_named.keys()
        for name, grad in found.items():
            assert_close(grad, their_named[name], 1000, scale=1.0, what=name)


def flat(value: Any) -> list[Any]:
    """The tensors in nested tuples, without None."""
    if isinstance(value, tuple):
        return [each for part in value for each in flat(part)]
    return [] if value is None else [value]


def learned(values: Any) -> list[Any]:
    """The tensors that require a gradient among arguments, each once."""
    found = {id(x): x for x in flat(tuple(values)) if getattr(x, "requires_grad", False)}
    return list(found.values())
