"""Converters of linear models and support vector machines (domain ai.onnx.ml), and ZipMap."""

from __future__ import annotations

import itertools

import numpy as np

from ... import ops
from ...autograd.tensor import Tensor, make_const
from ...conversion.values import Value, tensor
from ..graph import Node
from ..registry import converter
from .ml import floats, row, transformed

_ML = "ai.onnx.ml"
_MOST_PROBABLE = 10  # largest number of classes with probabilities, which take several hundred ops
_PROBABLE_STEPS = 8

Pairs = list[tuple[int, int]]


@converter("ZipMap", domain=_ML)
def zip_map(node: Node, data: Value) -> Tensor:
    """Return the scores themselves, because needle has no maps. The columns are in the order of the
    classes."""
    return tensor(data)


@converter("LinearClassifier", domain=_ML)
def linear_classifier(node: Node, data: Value) -> tuple[Tensor, Tensor]:
    """Return the label of each row, and the scores (rows, classes)."""
    labels, x = _labels(node), floats(data)
    shift = node.numbers("intercepts", ())
    count = len(shift) or len(labels)
    numbers = node.numbers("coefficients")
    if x.ndim != 2 or len(numbers) != count * x.shape[1]:
        raise node.invalid(f"{len(numbers)} coefficients for {count} scores of {x.spec} do not fit")
    scores = ops.matmul(x, _matrix(numbers, count))
    scores = ops.add(scores, row(shift)) if shift else scores
    if count == 1 and len(labels) == 2:
        return _sign(scores, labels), _both(node, scores, is_probable=True)
    if count != len(labels):
        raise node.invalid(f"{count} scores do not fit {len(labels)} labels")
    return ops.take(make_const(labels), ops.argmax(scores, 1), 0), transformed(node, scores)


def _matrix(numbers: tuple[float, ...], rows: int) -> Tensor:
    """Return the transpose of a matrix that a node lists row by row."""
    return make_const(np.ascontiguousarray(np.array(numbers, "float32").reshape(rows, -1).T))


def _labels(node: Node) -> np.ndarray:
    if node.has("classlabels_strings"):
        raise node.unsupported("labels that are strings; needle has integers only")
    return np.array(node.integers("classlabels_ints"), "int64")


def _sign(score: Tensor, labels: np.ndarray) -> Tensor:
    """Return, for each row, the second of two labels if the `score` (rows, 1) is above 0, else the
    first."""
    return ops.take(make_const(labels), ops.cast(ops.greater(score, 0.0)[:, 0], "int64"), 0)


def _both(node: Node, score: Tensor, is_probable: bool) -> Tensor:
    """Return the scores of both classes from the score (rows, 1) of the second. LOGISTIC turns that
    score into a probability; otherwise `is_probable` says whether it is treated as one, as in ONNX
    Runtime."""
    kind = node.text("post_transform", "NONE")
    if kind == "PROBIT":
        raise node.unsupported("PROBIT of one score for two classes")
    if kind == "LOGISTIC":
        return ops.sigmoid(ops.concat([ops.negate(score), score], 1))
    other = ops.subtract(1.0, score) if is_probable else ops.negate(score)
    return ops.concat([other, score], 1)


@converter("SVMRegressor", domain=_ML)
def svm_regressor(node: Node, data: Value) -> Tensor:
    if node.text("post_transform", "NONE") != "NONE":
        raise node.unsupported(f"the post_transform {node.text('post_transform')}")
    x, count = floats(data), node.integer("n_supports", 0)
    weighted = _kernel(node, x, count) if count else x
    numbers = node.numbers("coefficients")
    if weighted.ndim != 2 or len(numbers) != weighted.shape[1]:
        raise node.invalid(f"{len(numbers)} coefficients do not fit {weighted.spec}")
    score = ops.add(ops.matmul(weighted, _matrix(numbers, 1)), row(node.numbers("rho")[:1]))
    if node.flag("one_class", False):
        return ops.where(ops.greater(score, 0.0), row([1.0]), row([-1.0]))
    return score


def _kernel(node: Node, x: Tensor, count: int) -> Tensor:
    """Return the value (rows, count) of the kernel function for each row and each of `count`
    support vectors."""
    vectors = np.array(node.numbers("support_vectors"), "float32")
    if x.ndim != 2 or len(vectors) != count * x.shape[1]:
        raise node.invalid(
            f"support_vectors are {len(vectors)} numbers, not {count} rows for {x.spec}"
        )
    kind = node.text("kernel_type", "LINEAR")
    gamma, shift, degree = node.numbers("kernel_params", (0.0, 0.0, 0.0))[:3]
    vectors = vectors.reshape(count, -1)
    if kind == "RBF":  # from differences, to avoid the cancellation in the expanded square
        apart = ops.subtract(ops.unsqueeze(x, 1), make_const(vectors[None]))
        return ops.exp(ops.mul_scalar(ops.sum(ops.multiply(apart, apart), 2), -gamma))
    products = ops.matmul(x, make_const(np.ascontiguousarray(vectors.T)))
    if kind == "LINEAR":
        return products
    inner = ops.add_scalar(ops.mul_scalar(products, gamma), shift)
    if kind == "POLY":
        return ops.power(inner, row([degree]))
    if kind == "SIGMOID":
        return ops.tanh(inner)
    raise node.invalid(f"kernel_type {kind!r} is not one of LINEAR, POLY, RBF, SIGMOID")


@converter("SVMClassifier", domain=_ML)
def svm_classifier(node: Node, data: Value) -> tuple[Tensor, Tensor]:
    """Return the label of each row, and the scores. If the node has prob_a, the scores are
    probabilities (rows, classes). Otherwise they are the decision values (rows, pairs) of the pairs
    of classes or, for only two classes, one score per class (rows, 2)."""
    labels, x = _labels(node), floats(data)
    counts = node.integers("vectors_per_class", ())
    if len(counts) != len(labels) or len(labels) < 2 or not sum(counts):
        raise node.unsupported(
            f"vectors_per_class is {list(counts)}, but there are {len(labels)} labels"
        )
    pairs = list(itertools.combinations(range(len(labels)), 2))
    shift = node.numbers("rho")
    if len(shift) != len(pairs):
        raise node.invalid(f"rho has {len(shift)} numbers for {len(pairs)} pairs of classes")
    decided = ops.matmul(_kernel(node, x, sum(counts)), _of_pairs(node, counts, pairs))
    decided = ops.add(decided, row(shift))
    label = ops.take(make_const(labels), ops.argmax(_votes(decided, len(labels), pairs), 1), 0)
    if node.numbers("prob_a", ()):
        return label, transformed(node, _probabilities(node, decided, len(labels), pairs))
    if len(labels) == 2:
        return label, _both(node, decided, node.text("post_transform", "NONE") != "NONE")
    return label, transformed(node, decided)


def _of_pairs(node: Node, counts: tuple[int, ...], pairs: Pairs) -> Tensor:
    """Return the contribution (vectors, pairs) of each support vector to the decision value of each
    pair of classes."""
    ends = np.cumsum(counts)
    numbers = np.array(node.numbers("coefficients"), "float32")
    if len(numbers) != (len(counts) - 1) * ends[-1]:
        raise node.invalid(
            f"{len(numbers)} coefficients do not fit vectors_per_class {list(counts)}"
        )
    numbers = numbers.reshape(-1, ends[-1])
    made = np.zeros((ends[-1], len(pairs)), "float32")
    for k, (i, j) in enumerate(pairs):
        for own, other in ((i, j - 1), (j, i)):  # a class has no coefficients against itself
            at = slice(ends[own] - counts[own], ends[own])
            made[at, k] = numbers[other, at]
    return make_const(made)


def _votes(decided: Tensor, classes: int, pairs: Pairs) -> Tensor:
    """Return, for each class, how many pairs vote for it: (rows, classes)."""
    first, second = np.eye(classes, dtype="float32")[np.array(pairs).T]
    is_first = ops.cast(ops.greater(decided, 0.0), "float32")
    return ops.add(ops.matmul(is_first, make_const(first - second)), row(second.sum(0)))


def _probabilities(node: Node, decided: Tensor, classes: int, pairs: Pairs) -> Tensor:
    """Return the probability of each class (rows, classes) from the decision values of the pairs
    (rows, pairs), by the second approach of Wu, Lin and Weng (2004). The steps are LIBSVM's. A row
    no longer changes once it has converged, which takes up to four steps; LIBSVM allows 100."""
    if classes > _MOST_PROBABLE:
        raise node.unsupported(
            f"probabilities (prob_a) of {classes} classes; at most {_MOST_PROBABLE}"
        )
    slopes, shifts = (row(node.numbers(name)) for name in ("prob_a", "prob_b"))
    inner = ops.add(ops.multiply(decided, slopes), shifts)
    of_first = ops.clip(ops.sigmoid(ops.negate(inner)), 1e-7, 1 - 1e-7)
    i, j = np.array(pairs).T
    places = np.zeros((len(pairs), classes, classes), "float32")
    places[range(len(pairs)), i, j], places[range(len(pairs)), j, i] = 1.0, -1.0
    lower = np.zeros((classes, classes), "float32")
    lower[j, i] = 1.0
    flat = ops.matmul(of_first, make_const(places.reshape(len(pairs), -1)))
    won = ops.add(ops.reshape(flat, (decided.shape[0], classes, classes)), make_const(lower))
    squares = ops.sum(ops.multiply(won, won), 1)
    apart = ops.negate(ops.multiply(won, ops.transpose(won, (1, 2))))
    is_own = make_const(np.eye(classes, dtype=bool))
    matrix = ops.where(is_own, ops.unsqueeze(squares, 2), apart)
    found = ops.add_scalar(ops.mul_scalar(squares, 0.0), 1.0 / classes)
    for _ in range(_PROBABLE_STEPS):
        found = _closer(matrix, found, classes)
    return found


def _closer(matrix: Tensor, found: Tensor, classes: int) -> Tensor:
    """Take one step towards the probabilities, for rows that have not converged."""
    pulls = ops.sum(ops.multiply(matrix, ops.unsqueeze(found, 1)), 2)
    level = ops.sum(ops.multiply(found, pulls), 1, keepdims=True)
    error = ops.max(ops.abs(ops.subtract(pulls, level)), 1, keepdims=True)
    moved = found
    for t in range(classes):
        own, unit = matrix[:, t, :], make_const(np.eye(classes, dtype="float32")[t])
        weight, pull = own[:, t : t + 1], pulls[:, t : t + 1]
        by = ops.divide(ops.subtract(level, pull), weight)
        total = ops.add_scalar(by, 1.0)
        rise = ops.multiply(by, ops.add(ops.multiply(by, weight), ops.mul_scalar(pull, 2.0)))
        level = ops.divide(ops.add(level, rise), ops.multiply(total, total))
        moved = ops.divide(ops.add(moved, ops.multiply(by, unit)), total)
        pulls = ops.divide(ops.add(pulls, ops.multiply(by, own)), total)
    return ops.where(ops.less(error, 0.005 / classes), found, moved)
