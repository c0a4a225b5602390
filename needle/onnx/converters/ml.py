"""Converters of classical machine learning on numbers (domain ai.onnx.ml), and TfIdfVectorizer."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ... import ops
from ...autograd.tensor import Tensor, make_const
from ...backend_ndarray.dtypes import is_floating
from ...conversion.budget import bounded
from ...conversion.values import Value, tensor
from ..graph import Node
from ..registry import converter
from .index import index_tensor

_ML = "ai.onnx.ml"


@converter("Binarizer", domain=_ML)
def binarizer(node: Node, data: Value) -> Tensor:
    x = tensor(data)
    return ops.cast(ops.greater(x, node.number("threshold", 0.0)), x.dtype)


@converter("ArrayFeatureExtractor", domain=_ML)
def array_feature_extractor(node: Node, data: Value, indices: Value) -> Tensor:
    x = tensor(data)
    made = ops.take(x, ops.reshape(index_tensor(indices), (-1,)), -1)
    return ops.unsqueeze(made, 0) if x.ndim == 1 else made


@converter("Scaler", domain=_ML)
def scaler(node: Node, data: Value) -> Tensor:
    x = floats(data)
    moved = ops.subtract(x, row(node.numbers("offset", (0.0,))))
    return ops.multiply(moved, row(node.numbers("scale", (1.0,))))


def floats(value: Value) -> Tensor:
    """Return a `value` as float32, the dtype in which these operators compute."""
    return ops.cast(tensor(value), "float32")


def row(numbers: Any) -> Tensor:
    """Return the `numbers` of an attribute as a float32 constant."""
    return make_const(np.array(numbers, "float32"))


@converter("Normalizer", domain=_ML)
def normalizer(node: Node, data: Value) -> Tensor:
    x, norm = floats(data), node.text("norm", "MAX")
    axis = x.ndim - 1
    if norm == "MAX":  # the largest value, not magnitude, as in ONNX Runtime
        by = ops.max(x, axis, keepdims=True)
    elif norm == "L1":
        by = ops.sum(ops.abs(x), axis, keepdims=True)
    elif norm == "L2":
        by = ops.sqrt(ops.sum(ops.multiply(x, x), axis, keepdims=True))
    else:
        raise node.invalid(f"norm {norm!r} is not one of MAX, L1, L2")
    return ops.divide(x, ops.where(ops.equal(by, 0.0), 1.0, by))


@converter("Imputer", domain=_ML)
def imputer(node: Node, data: Value) -> Tensor:
    x = tensor(data)
    kind = "float" if is_floating(x.dtype) else "int64"
    values = node.attributes.get(f"imputed_value_{kind}s", ())
    if len(values) not in (1, x.shape[-1]):
        raise node.invalid(
            f"imputed_value_{kind}s has {len(values)} values, which do not fit {x.spec}"
        )
    replaced = node.attributes.get(f"replaced_value_{kind}", 0)
    found = ops.isnan(x) if math.isnan(replaced) else ops.equal(x, replaced)
    return ops.where(found, make_const(np.array(values, x.dtype)), x)


@converter("LinearRegressor", domain=_ML)
def linear_regressor(node: Node, data: Value) -> Tensor:
    return transformed(node, _linear(node, floats(data), node.integer("targets", 1)))


def _linear(node: Node, x: Tensor, targets: int) -> Tensor:
    numbers = node.numbers("coefficients")
    if x.ndim != 2 or len(numbers) != targets * x.shape[1]:
        raise node.invalid(
            f"{len(numbers)} coefficients for {targets} results of {x.spec} do not fit"
        )
    matrix = np.array(numbers, "float32").reshape(targets, x.shape[1]).T
    made = ops.matmul(x, make_const(np.ascontiguousarray(matrix)))
    shift = node.numbers("intercepts", ())
    return ops.add(made, row(shift)) if shift else made


def transformed(node: Node, scores: Tensor) -> Tensor:
    """Apply the function that the attribute `post_transform` of a `node` gives, by name or number,
    to `scores` (rows, targets)."""
    names = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
    given = node.attributes.get("post_transform", "NONE")
    if given not in names and given not in range(len(names)):
        raise node.invalid(f"post_transform {given!r} is not one of {', '.join(names)}")
    name = given if isinstance(given, str) else names[given]
    if name == "SOFTMAX":
        return ops.softmax(scores, -1)
    if name == "LOGISTIC":
        return ops.sigmoid(scores)
    if name == "SOFTMAX_ZERO":  # scores of 0 stay 0
        is_zero = ops.equal(scores, 0.0)
        return ops.where(is_zero, 0.0, ops.softmax(ops.where(is_zero, -math.inf, scores), -1))
    if name == "PROBIT":
        return ops.mul_scalar(ops.erfinv(ops.add_scalar(ops.mul_scalar(scores, 2.0), -1.0)), 2**0.5)
    return scores


@converter("LabelEncoder", domain=_ML, since=2)
def label_encoder(node: Node, data: Value) -> Tensor:
    """Look up the value of each key by a binary search in the sorted keys."""
    x = tensor(data)
    keys, _ = _listed(node, "keys")
    values, kind = _listed(node, "values")
    if len(keys) != len(values) or not len(keys):
        raise node.invalid(
            f"{len(keys)} keys and {len(values)} values: the numbers must be equal and above 0"
        )
    default = {"floats": -0.0, "int64s": -1}.get(kind, 0)
    default = node.attributes.get(f"default_{kind.removesuffix('s')}", default)
    keys = np.asarray(keys).astype(x.dtype)
    order = np.argsort(keys, kind="stable")  # NaN comes last
    table = np.concatenate([values[order], np.array(default, values.dtype).reshape(-1)[:1]])
    ordered = keys[order]
    if node.opset >= 4 and is_floating(x.dtype) and np.isnan(ordered[-1]):  # NaN is a key
        ordered[-1] = np.inf
        x = ops.where(ops.isnan(x), np.inf, x)
    at = ops.searchsorted(make_const(ordered), x)
    at = ops.minimum(at, len(ordered) - 1)
    found = ops.equal(ops.take(make_const(ordered), at, 0), x)
    return ops.take(make_const(table), ops.where(found, at, len(ordered)), 0)


def _listed(node: Node, what: str) -> tuple[np.ndarray, str]:
    """Return the keys or values, and the kind of the attribute that lists them."""
    for kind, dtype in (("int64s", "int64"), ("floats", "float32"), ("tensor", None)):
        if node.has(f"{what}_{kind}"):
            return np.asarray(node.attributes[f"{what}_{kind}"], dtype).reshape(-1), kind
    raise node.unsupported(f"{what} that are strings")


@converter("OneHotEncoder", domain=_ML)
def one_hot_encoder(node: Node, data: Value) -> Tensor:
    """Return 1 at the category of each value. A value outside the categories gives zeros. If the
    file requires an error instead (`zeros` = 0), the value gives NaN, because compiled code cannot
    raise."""
    if not node.has("cats_int64s"):
        raise node.unsupported("categories that are strings")
    x = tensor(data)
    x = x if x.dtype == "int64" else ops.cast(x, "int64")
    classes = make_const(np.array(node.integers("cats_int64s"), "int64"))
    found = ops.equal(ops.unsqueeze(x, x.ndim), classes)
    made = ops.cast(found, "float32")
    if node.flag("zeros", True):
        return made
    return ops.where(ops.any(found, x.ndim, keepdims=True), made, math.nan)


@converter("FeatureVectorizer", domain=_ML)
def feature_vectorizer(node: Node, *inputs: Value) -> Tensor:
    parts = []
    for value, width in zip(inputs, node.integers("inputdimensions"), strict=True):
        x = floats(value)
        x = ops.unsqueeze(x, 1) if x.ndim == 1 else x
        more = width - x.shape[1]
        parts.append(ops.pad(x, ((0, 0), (0, more))) if more > 0 else x[:, :width])
    return ops.concat(parts, 1)


@converter("TfIdfVectorizer", since=9)
def tf_idf_vectorizer(node: Node, data: Value) -> Tensor:
    """Count the occurrences of each listed n-gram in each row. An occurrence may skip up to
    max_skip_count elements between neighbours, the same number between all of them."""
    if not node.has("pool_int64s"):
        raise node.unsupported("n-grams of strings")
    x, mode = tensor(data), node.text("mode")
    if x.ndim not in (1, 2) or mode not in ("TF", "IDF", "TFIDF"):
        raise node.invalid(
            f"an input {x.spec} has more than two axes, or the mode {mode!r} is unknown"
        )
    places = np.array(node.integers("ngram_indexes"))
    width = int(places.max()) + 1
    rows = ops.unsqueeze(x, 0) if x.ndim == 1 else x
    bounded((rows.shape[0], width))
    counts: list[Tensor] = []
    at: list[int] = []
    for grams, first in _grams(node):
        size = grams.shape[1]
        for skip in range(1, 2 + (node.integer("max_skip_count") if size > 1 else 0)):
            found = _occurrences(rows, grams, skip)
            if found is None:  # larger skips do not fit either
                break
            counts.append(found)
            at += places[first : first + len(grams)].tolist()
    if counts:
        every, place = ops.concat(counts, 1), make_const(np.array(at))
        totals = ops.segment_sum(every, place, width, 1)
    else:
        totals = make_const(np.zeros((rows.shape[0], width), "float32"))
    weights = node.numbers("weights", ())
    if mode == "IDF":
        totals = ops.cast(ops.greater(totals, 0.0), "float32")
    if weights and mode != "TF":
        if len(weights) != len(places):
            raise node.invalid(f"{len(weights)} weights do not fit {len(places)} n-grams")
        of_place = np.ones(width)
        of_place[places] = weights  # in the order of the n-grams
        totals = ops.multiply(totals, row(of_place))
    return ops.reshape(totals, (width,)) if x.ndim == 1 else totals


def _grams(node: Node) -> Any:
    """Yield (n-grams, index of the first n-gram) for each size between the limits."""
    pool, starts = node.integers("pool_int64s"), node.integers("ngram_counts")
    first = 0
    for size, (start, end) in enumerate(zip(starts, (*starts[1:], len(pool)), strict=True), 1):
        grams = np.array(pool[start:end], "int64").reshape(-1, size)
        if node.integer("min_gram_length") <= size <= node.integer("max_gram_length") and len(
            grams
        ):
            yield grams, first
        first += len(grams)


def _occurrences(rows: Tensor, grams: np.ndarray, skip: int) -> Tensor | None:
    """Count the occurrences (rows, n-grams) of each n-gram with elements `skip` apart in each row,
    as floats. Return None if rows are too short."""
    size = grams.shape[1]
    starts = rows.shape[1] - skip * (size - 1)
    if starts < 1:
        return None
    whole: Any = None
    for i in range(size):
        part = ops.unsqueeze(rows[:, skip * i : skip * i + starts], 2)
        same = ops.equal(part, make_const(grams[:, i].astype(rows.dtype)))
        whole = same if whole is None else ops.logical_and(whole, same)
    return ops.sum(ops.cast(whole, "float32"), 1)
