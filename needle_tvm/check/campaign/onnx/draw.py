"""A random graph of ONNX operators under construction.

`recipes` and `layers` add nodes. ONNX Runtime computes each as it is drawn, in a model of that node
alone: a node that it refuses, or whose result leaves the range of numbers, is drawn again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from needle_tvm.check.campaign.onnx.graphs import (
    INPUT,
    WEIGHT,
    GraphProgram,
    Leaf,
    OnnxNode,
    model_of,
)

_EXTENTS = (1, 1, 2, 2, 3, 3, 4, 5, 7, 8, 11, 13, 16, 17, 24, 31, 32, 48)
_MOST_ELEMENTS = 1 << 12
_OPSETS = (13, 15, 17, 18, 19, 20, 21, 22, 23, 24)
_LENGTHS = (2, 3, 4, 6, 8, 12)
_FLOATS, _FLOAT_WEIGHTS = ("float32", "float64", "float16"), (76, 12, 12)
INTEGERS = ("int64", "int64", "int32", "int8", "uint8", "int16")
MICROSOFT = "com.microsoft"

# ONNX leaves open what these make of NaN: ONNX Runtime takes it for a small number, or leaves it.
NOT_OF_NAN = {
    "ArgMax", "ArgMin", "Clip", "DynamicQuantizeLinear", "GRU", "GlobalMaxPool", "HardSigmoid",
    "Hardmax", "InstanceNormalization", "LSTM", "LogSoftmax", "Max", "MaxPool", "Min",
    "NegativeLogLikelihoodLoss", "QuantizeLinear", "RNN", "ReduceMax", "ReduceMin", "Resize",
    "ScatterElements", "ScatterND", "Sign", "SoftmaxCrossEntropyLoss", "TopK",
}  # fmt: skip

# ONNX Runtime computes these in float32 also in float64.
_IN_FLOAT32 = {
    "Attention", "BlackmanWindow", "FastGelu", "Gelu", "GroupNormalization", "HammingWindow",
    "HannWindow", "HardSwish", "QuickGelu", "RMSNormalization", "Shrink",
}  # fmt: skip


@dataclass(frozen=True)
class Made:
    """A tensor of the graph, by its name, with its value."""

    name: str
    array: np.ndarray[Any, Any]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    @property
    def rank(self) -> int:
        return self.array.ndim

    @property
    def dtype(self) -> str:
        return self.array.dtype.name

    @property
    def floating(self) -> bool:
        return self.array.dtype.kind == "f"


class Unfit(Exception):
    """A node is refused, or its result leaves the range of numbers."""


class Drawer:
    """A graph under construction."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"onnx {seed}")
        self.opset = self.rng.choice(_OPSETS)
        self.dtype = self.rng.choices(_FLOATS, _FLOAT_WEIGHTS)[0]
        self.special, self.empty = self.rng.random() < 0.06, self.rng.random() < 0.05
        self.leaves: list[Leaf] = []
        self.nodes: list[OnnxNode] = []
        self.values: list[Made] = []  # to continue from: no weights and no constants
        self._known: dict[str, Leaf | np.ndarray[Any, Any]] = {}
        self._numbers = 0

    def program(self, recipes: Recipes) -> GraphProgram:
        """Draw nodes until there are enough, and return the graph."""
        rng = self.rng
        for _ in range(rng.choice([1, 1, 2, 3])):
            self.input(self.shape())
        wanted = rng.choice(_LENGTHS)
        groups, weights = zip(*recipes, strict=True)
        for _ in range(12 * wanted):
            if len(self.nodes) >= wanted:
                break
            try:
                rng.choice(rng.choices(groups, weights)[0])(self)
            except Unfit:
                continue
        read = {name for node in self.nodes for name in node.inputs}
        made = {name for node in self.nodes for name in node.outputs if name}
        sinks = [v for v in self.values if v.name in made and v.name not in read]
        chosen = sinks[: rng.randint(1, 5)]
        if rng.random() < 0.2:  # one that is also read
            chosen += [v for v in rng.sample(self.values, 1) if v not in chosen and v.name in made]
        chosen = chosen or [v for v in self.values if v.name in made][-1:]
        rng.shuffle(chosen)
        whole = GraphProgram(self.opset, tuple(self.leaves), tuple(self.nodes), ())
        return whole.pruned([(v.name, v.dtype) for v in chosen])

    # Leaves

    def name(self, prefix: str) -> str:
        self._numbers += 1
        return f"{prefix}{self._numbers}"

    def extent(self) -> int:
        return 0 if self.empty and self.rng.random() < 0.15 else self.rng.choice(_EXTENTS)

    def shape(self, rank: int | None = None) -> list[int]:
        rank = self.rng.choice([0, 1, 2, 2, 3, 3, 4]) if rank is None else rank
        shape = [self.extent() for _ in range(rank)]
        while rank and np.prod(shape) > _MOST_ELEMENTS:
            axis = shape.index(max(shape))
            shape[axis] = max(1, shape[axis] // 2)
        return shape

    def leaf(
        self,
        kind: str,
        shape: Sequence[int],
        dtype: str | None = None,
        low: float = -2.0,
        high: float = 2.0,
        numbers: tuple[Any, ...] | None = None,
    ) -> Made:
        dtype, rng = dtype or self.dtype, self.rng
        special = self.special and numbers is None and (low, high) == (-2, 2) and rng.random() < 0.5
        seed = rng.randrange(1000)
        leaf = Leaf(
            self.name("x" if kind == INPUT else "w"),
            kind,
            tuple(map(int, shape)),
            dtype,
            seed,
            low,
            high,
            special,
            numbers,
        )
        self.leaves.append(leaf)
        made = Made(leaf.name, leaf.array())
        self._known[leaf.name] = leaf
        if kind == INPUT:
            self.values.append(made)
        return made

    def input(
        self, shape: Sequence[int], dtype: str | None = None, low: float = -2.0, high: float = 2.0
    ) -> Made:
        return self.leaf(INPUT, shape, dtype, low, high)

    def weight(
        self, shape: Sequence[int], dtype: str | None = None, low: float = -2.0, high: float = 2.0
    ) -> Made:
        """Return an initialiser or, in one of five cases, an input."""
        kind = INPUT if self.rng.random() < 0.2 else WEIGHT
        return self.leaf(kind, shape, dtype, low, high)

    def constant(self, numbers: Any, dtype: str = "int64") -> Made:
        """Return an initialiser with these numbers."""
        array = np.array(numbers)
        flat = tuple(each.item() for each in array.reshape(-1))
        return self.leaf(WEIGHT, array.shape, dtype, numbers=flat)

    # Values so far

    def pick(self, fits: Callable[[Made], bool]) -> Made | None:
        """Return one of the values that fit, the last more often than others."""
        known = [value for value in self.values if fits(value)]
        if not known:
            return None
        return known[-1] if self.rng.random() < 0.6 else self.rng.choice(known)

    def any(self, *ranks: int) -> Made:
        """Return a value of any dtype and one of these ranks."""
        found = self.pick(lambda v: not ranks or v.rank in ranks)
        return found or self.input(self.shape(self.rng.choice(ranks) if ranks else None))

    def floating(self, *ranks: int) -> Made:
        """Return a value of the graph's floating-point dtype and one of these ranks."""
        found = self.pick(lambda v: v.dtype == self.dtype and (not ranks or v.rank in ranks))
        return found or self.input(self.shape(self.rng.choice(ranks) if ranks else None))

    def like(self, value: Made, dtype: str | None = None) -> Made:
        """Return a value that broadcasts against another: an existing one, or a leaf."""
        dtype = dtype or value.dtype
        if self.rng.random() < 0.5:
            found = self.pick(lambda v: v.dtype == dtype and broadcasts(v.shape, value.shape))
            if found is not None:
                return found
        shape = [1 if self.rng.random() < 0.25 else n for n in value.shape]
        low, high = (0, 9) if dtype.startswith("u") else (-2, 2)
        return self.weight(shape[self.rng.randint(0, len(shape)) :], dtype, low, high)

    def axis(self, value: Made) -> int:
        if value.rank == 0:
            raise Unfit
        return self.rng.randint(-value.rank, value.rank - 1)

    def some(self, attributes: dict[str, tuple[Any, ...]]) -> dict[str, Any]:
        """Draw values for some attributes; the others keep their defaults."""
        return {k: self.rng.choice(v) for k, v in attributes.items() if self.rng.random() < 0.6}

    # Nodes

    def node(
        self,
        op: str,
        *inputs: Made | None,
        outputs: int = 1,
        domain: str = "",
        **attributes: Any,
    ) -> list[Made]:
        """Add a node and return its results. Raises Unfit if it is refused."""
        if self.special and op in NOT_OF_NAN:
            raise Unfit
        if self.dtype == "float64" and op in _IN_FLOAT32:
            raise Unfit
        given = [value for value in inputs if value is not None]
        names = tuple("" if value is None else value.name for value in inputs)
        made = tuple(self.name("v") for _ in range(outputs))
        node = OnnxNode(op, names, made, attributes, domain)
        results = [
            Made(name, array) for name, array in zip(made, self._computed(node, given), strict=True)
        ]
        if not all(map(self._is_taken, results)):
            raise Unfit
        self.nodes.append(node)
        self.values += results
        return results

    def one(self, op: str, *inputs: Made | None, domain: str = "", **attributes: Any) -> Made:
        """Add a node of one result, and return it."""
        return self.node(op, *inputs, domain=domain, **attributes)[0]

    def _computed(self, node: OnnxNode, given: Sequence[Made]) -> list[np.ndarray[Any, Any]]:
        unique = {value.name: value for value in given}
        constants = {leaf.name for leaf in self.leaves if leaf.kind == WEIGHT}
        leaves = [
            self._known[name] if name in constants else Leaf(name, INPUT, value.shape, value.dtype)
            for name, value in unique.items()
        ]
        feeds = {name: v.array for name, v in unique.items() if name not in constants}
        try:
            model = model_of(self.opset, leaves, [node], [])  # type: ignore[arg-type]
            for name in node.outputs:
                model.graph.output.add().name = name
            return run(model, feeds)
        except Exception:  # ONNX Runtime may raise anything; the node is drawn again
            raise Unfit from None

    def _is_taken(self, made: Made) -> bool:
        array = made.array
        if array.dtype.kind not in "fiub" or array.size > _MOST_ELEMENTS or array.ndim > 6:
            return False
        if array.size == 0:
            return self.empty
        if array.dtype.kind in "iub":
            return bool(array.dtype.kind == "b" or np.abs(array.astype("float64")).max() < 2**40)
        if not self.special and not np.isfinite(array).all():
            return False
        most = 1e2 if array.dtype.itemsize == 2 else 1e4
        return self.special or bool(np.abs(array).max() < most)


def run(model: Any, feeds: dict[str, np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    """Return what ONNX Runtime computes, on one thread."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return [np.asarray(each) for each in session.run(None, feeds)]


def broadcasts(one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether two shapes do, by NumPy's rules."""
    pairs = zip(reversed(one), reversed(other), strict=False)
    return all(a == b or 1 in (a, b) for a, b in pairs)


Recipe = Callable[[Drawer], Any]
Recipes = Sequence[tuple[Sequence[Recipe], int]]  # groups of similar recipes, and their weights
