"""A random program under construction: its values, its steps, and operands for the next step.

`draw`, `layers` and `recipes` add steps to it. Values are computed along the way, so a step is
drawn again if an op refuses it or its result is out of range. The idea is NNSmith's (Liu et al.,
"NNSmith: Generating Diverse and Valid Test Cases for Deep Learning Compilers", ASPLOS 2023).
NNSmith finds valid steps with a solver, which an eager framework does not need.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import needle as ndl
from needle import nn, ops
from needle.autograd import topological_order
from needle.backend_ndarray.dtypes import DTYPES, is_floating, is_half
from needle.errors import TraceError
from needle.op import Op
from needle.ops._keys import Range
from needle.trace import Graph, trace_flat
from needle_tvm.check.campaign import sizes
from needle_tvm.check.campaign.program import CONSTANT, INPUT, PARAMETER, Leaf, Program, Step
from needle_tvm.check.campaign.sizes import Dims, Extent, least, most
from needle_tvm.frontend.bounds import widened

_EXTENTS = (1, 1, 2, 2, 3, 3, 4, 5, 7, 8, 11, 13, 16, 17, 24, 30, 31, 32, 33, 48, 50, 64, 100)
_MOST_ELEMENTS = 1 << 13
# Extents for the few programs whose rows and sums are longer than most rules expect.
_LARGE_EXTENTS = (1, 2, 3, 5, 16, 127, 128, 255, 257, 512, 1000, 1023, 4099, 8200, 40000, 140000)
_MOST_OF_LARGE = 1 << 18
_MOST_RANK = 5
REFUSALS = (TypeError, ValueError, IndexError, ZeroDivisionError, OverflowError, RuntimeError)


@dataclasses.dataclass
class Made:
    """A value of the program, made by a leaf or, if `leaf` is None, by a step.

    `shape` is the tensor's shape; extents that depend on dims are `Extent`s.
    """

    tensor: Any
    shape: tuple[int, ...]
    leaf: Leaf | None = None

    @property
    def dtype(self) -> str:
        return str(self.tensor.dtype)


class Unfit(Exception):
    """The step cannot be computed, or its result is out of range."""


class Drawer:
    def __init__(
        self,
        rng: random.Random,
        gradient: bool,
        has_dims: bool = False,
        allows: Callable[[Graph], bool] | None = None,
    ) -> None:
        self.rng, self.gradient, self._allows = rng, gradient, allows
        self.undrawn: list[str] = []  # reasons why steps were refused because of dims
        self.values: list[Made] = []
        self.steps: list[tuple[str, list[Made], list[Made]]] = []
        dtype = rng.choices(
            ["float32", "float64", "float16", "bfloat16", "mixed"], [50, 15, 8, 8, 19]
        )[0]
        self._dtypes = DTYPES if dtype == "mixed" else (dtype,)
        self._special = not gradient and rng.random() < 0.07
        self._empty = rng.random() < 0.05
        self.set_size(is_large=rng.random() < 0.06)
        self.dims = Dims(rng, self._is_large) if has_dims else None
        self._used: set[int] = set()

    def set_size(self, is_large: bool) -> None:
        self._is_large = is_large
        self._extents = _LARGE_EXTENTS if is_large else _EXTENTS
        self._most = _MOST_OF_LARGE if is_large else _MOST_ELEMENTS

    def needed_program(self) -> Program:
        """Return the drawn program, without the parts that no output needs."""
        rng = self.rng
        made = [value for _, _, results in self.steps for value in results]
        sinks = [value for value in made if id(value) not in self._used]
        sinks.sort(key=lambda value: -len(self._needed([value])))
        returned = sinks[: rng.randint(1, 6)] or self.values[-1:]
        if rng.random() < 0.3:
            returned += rng.sample(self.values, 1)  # may be shared, a leaf, or returned twice
        rng.shuffle(returned)
        needed = self._needed(returned)
        steps = [step for step in self.steps if any(id(value) in needed for value in step[2])]
        leaves = [v for v in self.values if v.leaf and (id(v) in needed or rng.random() < 0.02)]
        if not any(v.leaf and v.leaf.kind == INPUT for v in leaves):
            leaves.insert(0, self.values[0])  # a model needs an input, even if it ignores the input
        leaves += self._whole(leaves, steps)
        numbers = {id(v): i for i, v in enumerate(leaves)}
        for _, _, results in steps:
            for value in results:
                numbers[id(value)] = len(numbers)
        return Program(
            tuple(v.leaf for v in leaves if v.leaf),
            tuple(
                Step(text, tuple(numbers[id(v)] for v in operands), len(results))
                for text, operands, results in steps
            ),
            tuple(numbers[id(v)] for v in returned),
            dims=tuple(self.dims.sizes) if self.dims else (),
            undrawn=tuple(self.undrawn),
        ).with_used_dims()

    def _whole(self, leaves: Sequence[Made], steps: Sequence[tuple[str, Any, Any]]) -> list[Made]:
        """Return an additional leaf for each used dim that is not by itself an axis of one of
        `leaves`."""
        if self.dims is None:
            return []
        shapes = [v.leaf.shape for v in leaves if v.leaf]
        used = sizes.names_in([*shapes, *(text for text, _, _ in steps)])
        missing = sorted(used - {n for shape in shapes for n in shape if isinstance(n, str)})
        return [self.leaf([self.dims.whole(name)], "float32") for name in missing]

    def _needed(self, returned: Sequence[Made]) -> set[int]:
        needed = {id(value) for value in returned}
        for _, operands, results in reversed(self.steps):
            if any(id(value) in needed for value in results):
                needed.update(id(value) for value in operands)
        return needed

    # Leaves and steps

    def shape(self, rank: int | None = None) -> tuple[int, ...]:
        """Draw a shape that fits in memory; extents include 1, primes and, in some programs, 0."""
        rank = self.rng.choices(range(_MOST_RANK), [4, 20, 34, 26, 16])[0] if rank is None else rank
        shape: list[int] = []
        for _ in range(rank):
            room = self._most // max(1, math.prod(map(int, shape)))
            fitting = [n for n in self._extents if n <= room]
            shape.append(self.extent(fitting or [1]))
        if self._empty and shape and self.rng.random() < 0.2:
            shape[self.rng.randrange(rank)] = 0
        return tuple(shape)

    def extent(self, numbers: Sequence[int]) -> int:
        """Return one of these numbers or, if the program has dims, perhaps an expression."""
        if self.dims is not None and (found := self.dims.extent()) is not None:
            return found
        return self.rng.choice(numbers)

    def dtype(self) -> str:
        return self.rng.choice(self._dtypes)

    def float_dtype(self) -> str:
        dtypes = [dtype for dtype in self._dtypes if is_floating(dtype)]
        return self.rng.choice(dtypes)

    def leaf(
        self,
        shape: Sequence[int],
        dtype: str | None = None,
        low: float = -2.0,
        high: float = 2.0,
        kind: str | None = None,
    ) -> Made:
        """Add a new input, parameter or constant; an extent that depends on dims makes it an input.

        Raises Unfit if the leaf can be too large or empty.
        """
        kind = kind or self.rng.choices([INPUT, PARAMETER, CONSTANT], [40, 50, 10])[0]
        if any(isinstance(n, Extent) for n in shape):
            kind = INPUT
            if not self._is_small(shape) or any(
                isinstance(n, Extent) and least(n) < 1 for n in shape
            ):
                raise Unfit
        high = least(high)  # type: ignore[arg-type]  # for positions along a symbolic axis
        dtype = dtype or self.dtype()
        if not is_floating(dtype) and round(low) == round(high):  # a range for floats
            low, high = -2.0, 3.0
        special = self._special and self.rng.random() < 0.5
        special &= is_floating(dtype) or (low, high) == (-2.0, 2.0)  # not an index
        written = tuple(repr(n.expression) if isinstance(n, Extent) else n for n in shape)
        leaf = Leaf(kind, written, dtype, self.rng.randrange(1000), low, high, special)
        array = eval(leaf.expression(), {"np": np, **self._numbers})
        tensor = ndl.Tensor(array, device=ndl.cpu_numpy(), requires_grad=False)
        made = Made(tensor, tuple(shape), leaf)
        self.values.append(made)
        return made

    def add(self, text: str, *operands: Made, results: int = 1) -> list[Made] | None:
        """Add a step; return its results, or None if it fails or they are out of range."""
        code = text.format(*(f"v[{i}]" for i in range(len(operands))))
        tensors = [operand.tensor for operand in operands]

        def line(*v: Any) -> Any:
            return eval(code, {**_NAMESPACE, **self._numbers, "v": v})

        try:
            if self._is_large or self._allows is not None:
                # `trace` would look for weights in everything that the step can reach.
                named = [(str(i), tensor) for i, tensor in enumerate(tensors)]
                graph = trace_flat(lambda v: line(*v), named, dict)
                if self._is_large and not self._fits(graph):
                    return None
                if self._allows is not None and not self._allows(graph):
                    return None
            with ndl.no_grad(), np.errstate(all="ignore"):
                out = line(*tensors)
        except REFUSALS:
            return None
        if isinstance(out, ndl.Tensor) is not (results == 1):
            return None
        parts = [out] if results == 1 else list(out)
        if len(parts) != results or not all(self._is_in_range(part) for part in parts):
            return None
        shapes = [tuple(part.shape) for part in parts]
        if self.dims is not None:
            found = self._shapes(code, operands)
            if found is None:
                return None
            shapes = [
                tuple(map(sizes.extent, numbers, each))
                for numbers, each in zip(shapes, found, strict=True)
            ]
            if not all(map(self._is_small, shapes)):
                return None
        made = [Made(part, shape) for part, shape in zip(parts, shapes, strict=True)]
        self.steps.append((text, list(operands), made))
        self._used.update(id(operand) for operand in operands)
        self.values += made
        return made

    def _shapes(self, code: str, operands: Sequence[Made]) -> list[tuple[Any, ...]] | None:
        """Return the shapes of a step's results by the ops' rules for dims; None if the rules
        refuse the step."""
        assert self.dims is not None
        symbols = self.dims.symbols
        named = [(str(i), v.tensor) for i, v in enumerate(operands)]
        axes: dict[str, dict[int, Any]] = {
            str(i): {axis: n.expression for axis, n in enumerate(v.shape) if isinstance(n, Extent)}
            for i, v in enumerate(operands)
        }
        for name, number in self._numbers.items():  # the code may mention the name
            named.append((name, np.zeros(number, "float32")))
            axes[name] = {0: symbols[name]}
        try:
            graph = trace_flat(
                lambda v: eval(code, {**_NAMESPACE, **symbols, "v": v}),
                named,
                dict,
                dims=axes,
            )
        except TraceError as error:
            self.undrawn.append(str(error))
            return None
        return [spec.shape for node in graph.outputs for spec in node.specs]

    @property
    def _numbers(self) -> dict[str, int]:
        return self.dims.numbers if self.dims else {}

    def _is_small(self, shape: Sequence[int]) -> bool:
        """Return whether a value of this shape is small enough at all sizes."""
        return math.prod(map(most, shape)) <= 4 * self._most

    def one(self, text: str, *operands: Made) -> Made:
        """Add a step with one result; return the result. Raises Unfit if `add` refuses it."""
        made = self.add(text, *operands)
        if made is None:
            raise Unfit
        return made[0]

    def _fits(self, graph: Graph) -> bool:
        """Return whether no value in the graph is too large, such as a product of large values."""
        specs = [spec for node in topological_order(graph.outputs) for spec in node.specs]
        return all(math.prod(spec.shape) <= 4 * self._most for spec in specs)

    def _is_in_range(self, tensor: Any) -> bool:
        if tensor.size > 4 * self._most or len(tensor.shape) > 6:
            return False
        values = widened(tensor.numpy())
        if values.dtype == bool or not values.size or (values.dtype.kind == "i" and self._special):
            return True
        largest = 200 if is_half(tensor.dtype) else 1e4
        finite = np.isfinite(values)
        if not finite.all() and not self._special:
            return False
        return bool(np.abs(values.astype(np.float64)).max(where=finite, initial=0.0) <= largest)

    def pick(self, accept: Callable[[Made], bool] = lambda value: True) -> Made | None:
        """Return an existing value, preferably one that no step has read yet."""
        fitting = [value for value in self.values if accept(value)]
        fresh = [value for value in fitting if id(value) not in self._used]
        if fresh and self.rng.random() < 0.6:
            fitting = fresh
        return self.rng.choice(fitting) if fitting else None

    def floating(self, least_rank: int = 0) -> Made:
        """Return a floating-point value of at least this rank."""
        found = self.pick(lambda v: is_floating(v.dtype) and len(v.shape) >= least_rank)
        if found is None:
            rank = self.rng.randint(max(1, least_rank), 4)
            found = self.leaf(self.shape(rank), self.float_dtype())
        return found

    def like(self, value: Made, dtype: str | None = None) -> Made:
        """Return a value that broadcasts against another: an existing one, or a leaf."""
        shape = value.shape
        if self.rng.random() < 0.6:
            found = self.pick(
                lambda v: _broadcasts(v.shape, shape) and (dtype is None or v.dtype == dtype)
            )
            if found is not None:
                return found
        shape = tuple(1 if self.rng.random() < 0.2 else n for n in shape)
        cut = self.rng.choice([0, 0, 0, self.rng.randint(0, len(shape))])
        return self.leaf(shape[cut:], dtype or self.dtype())

    def apply(self, cls: type[Op], attributes: str, *operands: Made, results: int = 1) -> bool:
        places = ", ".join(f"{{{i}}}" for i in range(len(operands)))
        text = f"ops.{cls.__name__}({attributes})({places})"
        return self.add(text, *operands, results=results) is not None

    def within(self, value: Made, low: float, high: float) -> Made | None:
        """Return `value`, moved into [low, high) by a step unless it already lies there."""
        array = widened(value.tensor.numpy())
        if array.size and low <= array.min() and array.max() < high:
            return value
        made = self.add(f"ops.sigmoid({{0}}) * {high - low:g} + {low:g}", value)
        return made[0] if made else None

    # Axes and keys

    def axis(self, shape: tuple[int, ...]) -> int:
        return self.rng.randrange(-len(shape), len(shape)) if shape else 0

    def axes(self, shape: tuple[int, ...]) -> str:
        """Draw None, one axis, or several in any order, counted from either end."""
        if self.rng.random() < 0.2 or not shape:
            return "None"
        if self.rng.random() < 0.4:
            return str(self.axis(shape))
        chosen = self.rng.sample(range(len(shape)), self.rng.randint(1, len(shape)))
        return str(tuple(a - len(shape) if self.rng.random() < 0.4 else a for a in chosen))

    def slice(self, extent: int) -> str:
        """Draw a slice in Python's notation, of any part and with any step except 0."""
        rng = self.rng
        if isinstance(extent, Extent):
            known = least(extent)
            places = [*map(str, range(-known, known + 1)), str(extent // 2), str(extent - 1)]
            ends = ["" if rng.random() < 0.4 else rng.choice(places) for _ in "ab"]
        else:
            ends = [
                "" if rng.random() < 0.4 else str(rng.randint(-extent - 1, extent + 1))
                for _ in "ab"
            ]
        step = rng.choice(["", "", "", ":2", ":-1", ":3", ":-2"])
        return ":".join(ends) + step

    def key(self, shape: tuple[int, ...]) -> str:
        """Draw an index in NumPy's notation."""
        rng, parts = self.rng, []
        for extent in shape[: rng.randint(1, len(shape))]:
            kind = rng.choices(["slice", "int", "list", "ellipsis", "all"], [40, 25, 10, 5, 20])[0]
            known = least(extent)
            if kind == "int" and known:
                parts.append(str(rng.randrange(-known, known)))
            elif kind == "list" and known:
                picks = [rng.randrange(-known, known) for _ in range(rng.randint(1, 4))]
                parts.append(f"np.array({picks})")
            elif kind == "ellipsis" and "..." not in parts:
                parts.append("...")
            else:
                parts.append(self.slice(extent) if kind == "slice" else ":")
        for _ in range(rng.choices([0, 1, 2], [80, 14, 6])[0]):
            parts.insert(rng.randint(0, len(parts)), "None")
        return ", ".join(parts)


_NAMESPACE = {
    "np": np,
    "ndl": ndl,
    "ops": ops,
    "nn": nn,
    "Range": Range,
    "inf": math.inf,
    "nan": math.nan,
}


def _broadcasts(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return all(a == b or 1 in (a, b) for a, b in zip(one[::-1], other[::-1], strict=False))
