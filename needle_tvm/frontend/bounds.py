"""Expected outputs of a graph: float64 values, and the propagated error of each element.

The effect of a rounding error on a result depends on the program: `log(x)` near 1, or `a - b` of
nearly equal numbers, turns a small error into a large one, and the argmax of a near tie turns it
into another answer. So the graph is evaluated several times in float64, with each op's result
disturbed by the error that an implementation of the op may have. This is Monte Carlo arithmetic
(Parker, "Monte Carlo Arithmetic: exploiting randomness in floating-point arithmetic", UCLA
CSD-970002, 1997). The spread of the results is the error. Elements on which correct runs may
disagree, such as the argmax of a near tie, are not compared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from needle.autograd.shapes import Spec
from needle.backend_ndarray.dtypes import astype, compute_dtype, finfo, is_floating
from needle.op.subgraph import Body, reference_of
from needle.ops.conv import Conv, ConvInput, ConvWeight
from needle.ops.matmul import Matmul
from needle.testing import tolerance
from needle_runtime.artifact.tolerance import (
    compare,
    identical,
    largest_magnitude,
    operand_tolerance,
)
from needle_runtime.target.precision import FLOAT32
from needle_tvm.errors import MismatchError
from needle_tvm.faults import named, sentence

if TYPE_CHECKING:
    from needle.autograd import Node
    from needle.op import Op
    from needle.trace import Graph

Array = np.ndarray[Any, Any]

PRODUCTS = (Matmul, Conv)  # the ops that kernels/dense/narrow_products.py narrows

# The algorithm of a convolution decides whether zeros around or between the pixels of an image
# are multiplied by an infinite weight, and to which results a transform spreads a NaN.
CONVOLUTIONS = (Conv, ConvInput, ConvWeight)
ANYTHING = (np.nan, np.inf, -np.inf, 0.0)  # drawn to make runs disagree

_RUNS = 4
_SURE = 48  # runs needed before a difference counts: each misses a tie with probability 1/2
_SPREAD = 4.0  # factor on the spread of the runs, which is below the largest possible difference
_ROUNDING = 8.0  # factor on one rounding of a sum, since there is only one sample of it


@dataclass(frozen=True)
class Expected:
    """One output: its value in float64 (integers and booleans unchanged), the allowed error of each
    element, and a mask of the elements to compare."""

    value: Array
    error: Array
    known: Array

    def difference(self, found: Array) -> str | None:
        """Return what is wrong with a result, or None if it is right."""
        compared = compare(
            self.value, found, self.error, scale=1.0, same_dtype=False, known=self.known
        )
        return compared.what or None


class Evaluation:
    """Evaluates a graph on arrays in float64: once exactly, and several times with disturbances.

    `params` are weights by name. Operands of matmuls and convolutions may be rounded to
    `precision`.
    """

    def __init__(
        self,
        graph: Graph,
        inputs: Sequence[Array],
        params: Mapping[str, Array],
        precision: str = FLOAT32,
        seed: int = 0,
    ) -> None:
        self._graph, self._rng, self._precision = graph, np.random.default_rng(seed), precision
        self._leaves: dict[Node, Array] = {}
        for leaf, array in zip(graph.inputs, inputs, strict=True):
            self._leaves[leaf.node] = widened(array)
        for leaf in graph.params:
            self._leaves[leaf.node] = widened(params[leaf.name])
        for leaf in graph.constants:
            self._leaves[leaf.node] = widened(leaf.value.numpy())
        self._amplitudes: dict[Node, tuple[tuple[float, float], ...]] = {}
        self._exact = self._run(disturbed=False)
        self._runs: list[list[Array]] = []

    def expected(self, runs: int = _RUNS) -> list[Expected]:
        """Return the expected outputs from `runs` disturbed runs, including earlier runs."""
        while len(self._runs) < runs:
            self._runs.append(self._run(disturbed=True))
        specs = [spec for node in self._graph.outputs for spec in node.specs]
        return [
            expected(value, [run[i] for run in self._runs], spec.dtype)
            for i, (value, spec) in enumerate(zip(self._exact, specs, strict=True))
        ]

    def difference(self, found: Sequence[Array]) -> str | None:
        """Return what is wrong with the outputs `found`, or None if they are right."""
        if self._difference(found, _RUNS) is None:
            return None
        return self._difference(found, _SURE)

    def _difference(self, found: Sequence[Array], runs: int) -> str | None:
        for number, (want, have) in enumerate(zip(self.expected(runs), found, strict=True)):
            what = want.difference(have)
            if what is not None:
                return f"output {number}: {what}"
        return None

    def _run(self, disturbed: bool) -> list[Array]:
        values: dict[Node, Any] = dict(self._leaves)
        with np.errstate(all="ignore"):
            for node in self._graph.nodes:
                if node.op is None:
                    continue
                operands = [values[operand] for operand in node.input_nodes]
                if node.op.structural:
                    values[node] = node.op.reference(*operands)
                    continue
                within = disturbed and node.op.has_bodies
                parts = _twin(node, operands, self._disturbing(node) if within else None)
                if not disturbed:
                    self._amplitudes[node] = _amplitudes(node, operands, self._precision)
                parts = tuple(
                    self._rounded(part, spec.dtype, amplitude if disturbed else (0.0, 0.0))
                    for part, spec, amplitude in zip(
                        parts, node.specs, self._amplitudes[node], strict=True
                    )
                )
                if disturbed and isinstance(node.op, CONVOLUTIONS) and not _are_finite(operands):
                    parts = tuple(self._rng.choice(ANYTHING, part.shape) for part in parts)
                values[node] = parts if type(node.spec) is tuple else parts[0]
            return [np.array(part) for node in self._graph.outputs for part in _parts(values[node])]

    def _disturbing(self, node: Node) -> Any:
        """Return a function that computes the steps of an op's bodies, each disturbed by a rounding
        error."""
        bodies = [value for value in vars(node.op).values() if isinstance(value, Body)]
        specs = [spec for body in bodies for spec in body.specs() if isinstance(spec, Spec)]
        dtypes = {spec.dtype for spec in specs if is_floating(spec.dtype)}
        relative = max((float(finfo(dtype).eps) for dtype in dtypes), default=0.0)

        def disturbed(value: Any) -> Any:
            if isinstance(value, (tuple, list)):
                return tuple(map(disturbed, value))
            value = np.asarray(value)
            if value.dtype.kind != "f":
                return value
            return value * (1 + self._rng.choice([-relative, relative], value.shape))

        def run(op: Op, given: tuple[Any, ...]) -> Any:
            if op.has_bodies:
                return op.reference_by(run, *given)  # type: ignore[attr-defined]
            value = reference_of(op, given)
            return value if op.structural or op.moves else disturbed(value)

        return run

    def _rounded(self, value: Any, dtype: str, amplitude: tuple[float, float]) -> Array:
        """Return a result rounded to `dtype`, after a disturbance by (relative, absolute)."""
        value = np.asarray(value)
        if not is_floating(dtype):
            return value.astype(dtype)
        relative, absolute = amplitude
        if relative or absolute:
            signs = self._rng.choice([-1.0, 1.0], value.shape)
            value = value + signs * (relative * np.abs(value) + absolute)
        return widened(astype(np.asarray(value), dtype))


def widened(array: Any) -> Array:
    """Return a floating-point array in float64; other arrays unchanged."""
    array = np.asarray(array)
    return array.astype(np.float64) if is_floating(array.dtype.name) else array


def _are_finite(arrays: Sequence[Any]) -> bool:
    return all(np.isfinite(array).all() for array in arrays)


def _parts(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _twin(node: Node, operands: Sequence[Any], within: Any = None) -> tuple[Any, ...]:
    """Compute the parts of a node's value with its op's NumPy `reference`, or with `compute` on the
    NumPy device if there is none. `within` computes the steps of bodies. Raises a MismatchError
    that names the op if its rule fails or gives shapes other than `infer` does."""
    op = node.op
    assert op is not None
    if op.reads_bits:
        specs = [source.spec for source in node.input_nodes]
        operands = [astype(x, spec.dtype) for x, spec in zip(operands, specs, strict=True)]
    rule = "compute" if op.reference is None else "reference"
    try:
        if within is None:
            parts = _parts(reference_of(op, tuple(operands)))
        else:
            parts = op.reference_by(within, *operands)  # type: ignore[attr-defined]
    except Exception as error:  # a user's rule may raise anything
        raise MismatchError(f"{named(node)}: {rule} raises {sentence(error)}") from error
    shapes, wanted = [np.shape(part) for part in parts], [spec.shape for spec in node.specs]
    if shapes != wanted:
        raise MismatchError(f"{named(node)}: {rule} gives shapes {shapes}, infer says {wanted}")
    return parts


def _amplitudes(
    node: Node, operands: Sequence[Any], precision: str
) -> tuple[tuple[float, float], ...]:
    """Return the (relative, absolute) error that a correct implementation of a node's op may have,
    for each part of its value.

    The op's NumPy reference runs in float32 and in float64. An op that is exact in float32, such as
    one that moves or selects elements, is taken to be exact in every dtype. Otherwise the error
    shows how large the terms of the op's sums are.
    """
    op = node.op
    assert op is not None
    if op.reads_bits:
        return ((0.0, 0.0),) * len(node.specs)
    exact = [_map(_as_float32, operand) for operand in operands]
    wide = _twin(node, [_map(widened, operand) for operand in exact])
    off = _off(node, exact, wide)
    # A row of equal numbers may have an exact sum in one order and an inexact one in another.
    uneven = [_map(_uneven, operand) for operand in exact]
    off_uneven = _off(node, uneven, _twin(node, [_map(widened, operand) for operand in uneven]))
    length = op.reduction_length(*[source.spec for source in node.input_nodes])
    amplitudes = []
    for part_off, want, spec in zip(map(max, off, off_uneven), wide, node.specs, strict=True):
        want = widened(want)
        if not is_floating(spec.dtype):
            amplitudes.append((0.0, 0.0))
            continue
        finite = np.isfinite(want)
        if part_off == 0.0 and not _rounds(want[finite]):
            amplitudes.append((0.0, 0.0))
        else:
            if isinstance(op, PRODUCTS) and precision != FLOAT32:
                rounding = operand_tolerance(precision, length, want.size)
                part_off += largest_magnitude(want) * rounding / _ROUNDING
            eps = float(finfo(compute_dtype(spec.dtype)).eps) / float(np.finfo("float32").eps)
            amplitudes.append((tolerance(spec.dtype, length), _ROUNDING * part_off * eps))
    return tuple(amplitudes)


def _off(node: Node, operands: Sequence[Any], wide: Sequence[Any]) -> list[float]:
    """Return the largest error of the op's reference in float32 against float64, for each part."""
    found = []
    for have, want in zip(_twin(node, operands), map(widened, wide), strict=True):
        have = widened(have)
        finite = np.isfinite(want) & np.isfinite(have) & (want.dtype.kind == "f")
        off = np.abs(np.subtract(have, want, dtype=np.float64, casting="unsafe"))
        found.append(float(off.max(where=finite, initial=0.0)))
    return found


def _rounds(values: Array) -> bool:
    """Return whether float32 cannot represent some of these float64 values."""
    return bool((values.astype(np.float32).astype(np.float64) != values).any())


def _as_float32(array: Array) -> Array:
    return array.astype(np.float32) if array.dtype.kind == "f" else array


def _uneven(array: Array) -> Array:
    """Return float32 numbers one rounding away from these, some larger and some smaller."""
    if array.dtype.kind != "f":
        return array
    away = np.resize(np.array([1, -1, 1]) * np.finfo(np.float32).eps, array.shape)
    return (array * (1 + away)).astype(np.float32)


def _map(change: Any, value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_map(change, part) for part in value)
    return change(value)


def error_bounds(graph: Graph, precision: str = FLOAT32) -> dict[Node, float]:
    """Return the relative error accumulated in each node's value if operands of matmuls and
    convolutions are rounded to `precision`."""
    bounds: dict[Node, float] = {}
    for node in graph.nodes:
        before = max((bounds[operand] for operand in node.input_nodes), default=0.0)
        if node.op is None:
            bounds[node] = 0.0
        else:
            terms = node.op.reduction_length(*[operand.spec for operand in node.input_nodes])
            bounds[node] = before + max(tolerance(spec.dtype, terms) for spec in node.specs)
            if isinstance(node.op, PRODUCTS):
                results = math.prod(node.specs[0].shape)
                bounds[node] += operand_tolerance(precision, terms, results)
    return bounds


def expected(value: Array, runs: Sequence[Array], dtype: str | None = None) -> Expected:
    """Return the `Expected` of a result from its `value` and the values of disturbed `runs`.

    `dtype` is the dtype of the result; None means the dtype of `value`.
    """
    dtype = dtype or value.dtype.name
    if not is_floating(dtype):
        known = np.logical_and.reduce([run == value for run in runs])
        return Expected(value, np.zeros(value.shape), np.asarray(known))
    value, runs = widened(value), [widened(run) for run in runs]
    finite = np.isfinite(value)
    alike = np.logical_and.reduce(
        [np.where(finite, np.isfinite(run), identical(run, value)) for run in runs]
    )
    with np.errstate(all="ignore"):
        spread = np.maximum.reduce([np.abs(run - value) for run in runs])
        own = tolerance(dtype)
        error = _SPREAD * spread + own * np.abs(value) + 1e-2 * own * largest_magnitude(value)
    return Expected(value, np.where(finite, error, 0.0), np.asarray(alike))


def agreed(wanted: Expected, other: Array) -> Expected:
    """Return `wanted` without the elements in which another right answer differs in kind: only one
    of the two is finite, or they are different NaNs or infinities."""
    other = widened(other)
    if other.shape != wanted.value.shape:
        return wanted
    same = identical(other, wanted.value)
    both = np.isfinite(other) & np.isfinite(wanted.value)
    return replace(wanted, known=wanted.known & (both | same))


def is_float(value: Array) -> bool:
    """Return whether an array holds floating-point numbers."""
    return is_floating(value.dtype.name)
