"""Operators of ONNX Runtime (domain com.microsoft) beside ONNX Runtime itself."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest

import needle as ndl
import needle.onnx
from needle.errors import UnsupportedError
from needle.trace import trace
from tests.needle.onnx.peers import assert_same, by_needle, by_runtime, model_of

B, L, N, E = 2, 5, 4, 16  # batch, length, heads, features of a head
D = N * E


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng([seed, *shape])
    return rng.normal(size=shape).astype("float32")


def integers(values: Any, dtype: str = "int32") -> np.ndarray:
    return np.array(values, dtype)


class Case(NamedTuple):
    """An operator with its inputs in order (None: left out), its outputs (False: not asked for),
    attributes, and how many of the outputs are compared (None: all)."""

    operator: str
    inputs: list[Any]
    outputs: tuple[bool, ...] = (True,)
    attributes: Mapping[str, Any] = MappingProxyType({})
    domain: str = "com.microsoft"
    compared: int | None = None


def _weights() -> list[np.ndarray]:
    return [normal(B, L, D), normal(D, 3 * D) / 6, normal(3 * D)]


X, GAMMA, BETA = normal(B, L, D), normal(D, seed=1), normal(D, seed=2)
QKV = [normal(B, L, D, seed=seed) for seed in (3, 4, 5)]
KEYS = [normal(B, 7, D, seed=seed) for seed in (4, 5)]
RAGGED = integers([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
PAST = [normal(B, N, 3, E, seed=seed) for seed in (6, 7)]
TABLES = [
    f(np.arange(32)[:, None] * 0.6 ** np.arange(E // 2)).astype("float32") for f in (np.cos, np.sin)
]
PLACES = integers([[0, 1, 2, 3, 4], [3, 4, 5, 6, 7]], "int64")
THREE = (True, True, True)
WORDS, SEGMENTS = integers([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]]), integers([[0, 0, 1, 1, 1]] * 2)

CASES = {
    "gelu": Case("Gelu", [X]),
    "bias gelu": Case("BiasGelu", [X, BETA]),
    "fast gelu": Case("FastGelu", [X]),
    "fast gelu, bias": Case("FastGelu", [X, BETA]),
    "quick gelu": Case("QuickGelu", [X], attributes={"alpha": 1.3}),
    "matmul": Case(
        "FusedMatMul",
        [normal(3, 4, 5), normal(3, 6, 4)],
        (True,),
        {"transA": 1, "transB": 1, "alpha": 0.3},
    ),
    "matmul of batches behind": Case(
        "FusedMatMul",
        [normal(5, 3, 6), normal(6, 3, 4)],
        (True,),
        {"transBatchA": 1, "transBatchB": 1, "transB": 0},
    ),
    "skip layer norm": Case("SkipLayerNormalization", [X, X[::-1], GAMMA, BETA]),
    "skip layer norm, all outputs": Case(
        "SkipLayerNormalization",
        [X, X[::-1], GAMMA, BETA, GAMMA],
        (True, False, False, True),
        {"epsilon": 1e-3},
    ),
    "skip layer norm, one skip": Case("SkipLayerNormalization", [X, X[0], GAMMA]),
    "rms norm": Case(
        "SimplifiedLayerNormalization", [X, GAMMA], (True,), {"epsilon": 1e-3, "axis": -1}, ""
    ),
    "skip rms norm": Case(
        "SkipSimplifiedLayerNormalization", [X, X[::-1], GAMMA, BETA], (True, False, False, True)
    ),
    "embeddings": Case(
        "EmbedLayerNormalization",
        [WORDS, SEGMENTS, normal(10, D), normal(8, D), normal(2, D), GAMMA, BETA, RAGGED],
        THREE,
    ),
    "embeddings at places": Case(
        "EmbedLayerNormalization",
        [WORDS, None, normal(10, D), normal(8, D), None, GAMMA, BETA, None, PLACES.astype("int32")],
        (True, True),
    ),
    "attention": Case("Attention", _weights(), (True,), {"num_heads": N}),
    "attention, causal, present": Case(
        "Attention",
        [*_weights(), None, normal(2, B, N, 3, E)],
        (True, True),
        {"num_heads": N, "unidirectional": 1},
    ),
    "attention, raw mask": Case(
        "Attention", [*_weights(), RAGGED], (True,), {"num_heads": N, "scale": 0.2}
    ),
    "attention, ends": Case(
        "Attention", [*_weights(), integers([3, 5])], (True,), {"num_heads": N}
    ),
    "attention, ends and starts": Case(
        "Attention", [*_weights(), integers([4, 5, 1, 2])], (True,), {"num_heads": N}
    ),
    "attention, mask of queries, bias": Case(
        "Attention",
        [*_weights(), np.tril(np.ones((B, L, L), "int32")), None, normal(B, N, L, L)],
        (True,),
        {"num_heads": N, "mask_filter_value": -5.0, "unidirectional": 1},
    ),
    "attention, other widths": Case(
        "Attention",
        [X, normal(D, 144) / 6, normal(144)],
        (True,),
        {"num_heads": N, "qkv_hidden_sizes": [64, 64, 16]},
    ),
    "heads": Case("MultiHeadAttention", [QKV[0], *KEYS], (True,), {"num_heads": N}),
    "heads, bias, mask": Case(
        "MultiHeadAttention", [*QKV, normal(3 * D), RAGGED], THREE, {"num_heads": N}
    ),
    "heads, ends, causal": Case(
        "MultiHeadAttention",
        [*QKV, None, integers([3, 5])],
        (True,),
        {"num_heads": N, "unidirectional": 1},
    ),
    "heads, past, bias of scores": Case(
        "MultiHeadAttention",
        [*QKV, None, None, normal(1, N, L, L + 3), *PAST],
        THREE,
        {"num_heads": N},
    ),
    "heads, keys by heads": Case(
        "MultiHeadAttention",
        [QKV[0], normal(B, N, 7, E), normal(B, N, 7, E, seed=9)],
        (True,),
        {"num_heads": N, "scale": 0.5},
    ),
    "rotations": Case("RotaryEmbedding", [X, PLACES, *TABLES]),
    "rotations from a place": Case(
        "RotaryEmbedding", [X, integers([2], "int64"), *TABLES], (True,), {"interleaved": 1}
    ),
    "rotations by heads": Case("RotaryEmbedding", [normal(B, N, L, E), PLACES, *TABLES]),
    "rotations of a part": Case(
        "RotaryEmbedding",
        [X, PLACES, *[t[:, :2].copy() for t in TABLES]],
        (True,),
        {"num_heads": N, "rotary_embedding_dim": 4},
    ),
    "grouped prompt": Case(
        "GroupQueryAttention",
        [QKV[0], QKV[1][:, :, :32], QKV[2][:, :, :32], None, None, integers([4, 4]), integers(5)],
        THREE,
        {"num_heads": N, "kv_num_heads": 2},
    ),
    "grouped prompt, packed, rotated": Case(
        "GroupQueryAttention",
        [normal(B, L, 128), None, None, None, None, integers([4, 4]), integers(5), *TABLES],
        THREE,
        {"num_heads": N, "kv_num_heads": 2, "do_rotary": 1, "rotary_interleaved": 1},
    ),
    "grouped, a step": Case(
        "GroupQueryAttention",
        [
            QKV[0][:, :1],
            QKV[1][:, :1, :32],
            QKV[2][:, :1, :32],
            *[past[:, :2] for past in PAST],
            integers([3, 3]),
            integers(4),
            *TABLES,
        ],
        THREE,
        {"num_heads": N, "kv_num_heads": 2, "do_rotary": 1, "local_window_size": 2},
    ),
    "grouped, two lengths, cap": Case(
        "GroupQueryAttention",
        [
            QKV[0][:, :1],
            QKV[1][:, :1, :32],
            QKV[2][:, :1, :32],
            *[past[:, :2] for past in PAST],
            integers([3, 1]),
            integers(4),
            *TABLES,
        ],
        THREE,
        {"num_heads": N, "kv_num_heads": 2, "do_rotary": 1, "softcap": 3.0, "scale": 0.7},
        compared=1,  # the caches have no defined values behind the end of a sequence
    ),
    "grouped, a sink": Case(
        "GroupQueryAttention",
        [
            QKV[0][:, :1],
            QKV[1][:, :1, :32],
            QKV[2][:, :1, :32],
            *[past[:, :2] for past in PAST],
            integers([3, 3]),
            integers(4),
            *TABLES,
            None,
            None,
            normal(N),
        ],
        THREE,
        {"num_heads": N, "kv_num_heads": 2, "do_rotary": 1},
    ),
    "grouped prompt, smooth": Case(
        "GroupQueryAttention",
        [QKV[0], QKV[1][:, :, :32], QKV[2][:, :, :32], None, None, integers([4, 4]), integers(5)],
        THREE,
        {"num_heads": N, "kv_num_heads": 2, "smooth_softmax": 1},
    ),
    "grouped, several steps": Case(
        "GroupQueryAttention",
        [
            QKV[0][:1, :2],
            QKV[1][:1, :2, :32],
            QKV[2][:1, :2, :32],
            *[past[:1, :2] for past in PAST],
            integers([4]),
            integers(5),
            *TABLES,
        ],
        THREE,
        {"num_heads": N, "kv_num_heads": 2, "do_rotary": 1},
    ),
}
for activation, numbers in (
    ("Relu", [0.0]),
    ("LeakyRelu", [0.3]),
    ("Clip", [-0.2, 0.4]),
    ("HardSigmoid", [0.3, 0.4]),
):
    CASES[f"conv, {activation}"] = Case(
        "FusedConv",
        [
            normal(2, 3, 6, 7),
            normal(4, 3, 3, 3),
            normal(4),
            *([normal(2, 4, 6, 7)] if activation == "Relu" else []),
        ],
        (True,),
        {"activation": activation, "activation_params": numbers, "pads": [1, 1, 1, 1]},
    )
    names = ("activation_alpha", "activation_beta")
    if activation != "Clip":
        CASES[f"gemm, {activation}"] = Case(
            "FusedGemm",
            [normal(4, 5), normal(6, 4), normal(6)],
            (True,),
            {
                "activation": activation,
                "transA": 1,
                "transB": 1,
                "alpha": 0.4,
                "beta": 0.3,
                **dict(zip(names, numbers, strict=False)),
            },
        )
for bits, size, length in ((4, 16, 32), (4, 32, 40), (8, 16, 32), (2, 16, 32)):
    blocks = -(-length // size)
    rng = np.random.default_rng(bits)
    packed = rng.integers(0, 256, (6, blocks, size * bits // 8)).astype("uint8")
    scales = normal(6, blocks)
    zeros = rng.integers(0, 256, (6, -(-blocks * bits // 8))).astype("uint8")
    sizes = {"K": length, "N": 6, "bits": bits, "block_size": size}
    for name, given in (("", []), (", zeros", [zeros])):
        CASES[f"matmul of {bits} bits in {size} of {length}{name}"] = Case(
            "MatMulNBits", [normal(3, length), packed, scales, *given], (True,), sizes
        )


@pytest.mark.parametrize("name", CASES)
def test_operator(name: str) -> None:
    model, inputs = model_from(CASES[name])
    fixed = {n: inputs[n] for n in ("x6",) if CASES[name].operator.startswith("Group")}
    count = CASES[name].compared
    found = by_needle(model, inputs, fixed)
    assert_same(found[:count], by_runtime(model, inputs)[:count], 3e-5)


def test_packed_weights_are_unpacked_once() -> None:
    """While reading, and not by compiling the ops that unpack them only to fold them."""
    model, inputs = model_from(CASES["matmul of 4 bits in 16 of 32, zeros"])
    graph = trace(needle.onnx.load(model), *map(ndl.Tensor, inputs.values()))
    names = {each.op.name for each in graph.nodes if each.op is not None}
    assert "matmul" in names and not {name for name in names if "shift" in name or "bit" in name}


def model_from(case: Case) -> tuple[Any, dict[str, np.ndarray]]:
    helper = pytest.importorskip("onnx.helper")
    values = {f"x{i}": np.ascontiguousarray(x) for i, x in enumerate(case.inputs) if x is not None}
    names = [f"x{i}" if x is not None else "" for i, x in enumerate(case.inputs)]
    outputs = [f"y{i}" if asked else "" for i, asked in enumerate(case.outputs)]
    node = helper.make_node(case.operator, names, outputs, domain=case.domain, **case.attributes)
    weights = {}
    if case.operator == "MatMulNBits":
        weights = {n: values.pop(n) for n in list(values) if n != "x0"}
    counts = {"y1": "int32"} if case.operator.startswith("Embed") else {}
    asked = [name for name in outputs if name]
    return model_of([node], values, asked, weights, dtypes=counts), values


def test_what_is_not_there_is_named() -> None:
    case = Case("Attention", _weights(), (True,), {"num_heads": N, "do_rotary": 1})
    model, inputs = model_from(case)
    with pytest.raises(
        UnsupportedError, match=r"com.microsoft.Attention\): not supported: do_rotary"
    ):
        by_needle(model, inputs)
