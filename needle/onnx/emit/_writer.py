"""`Writer` collects the nodes that rules write for an ONNX graph, and the graph's named arrays.

A rule takes and returns `Value`s. Transposes and reshapes of weights and constants are applied
immediately, so that the file stores a weight in the form that the operator needs. Two consecutive
transposes become one transpose, or none.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...autograd.shapes import broadcast_shapes
from ...backend_ndarray.dtypes import astype, is_half
from ...sizes.dims import Expression
from ...sizes.extents import is_symbolic, same
from ._dtypes import NUMBER, computed_in
from ._shapes import Shape, reshape_target, unit_axis, with_ones
from ._sizes import Sizes
from ._values import Value


@dataclasses.dataclass
class Written:
    """One node: the names of its tensors, and its attributes as Python values (a Writer for a
    subgraph)."""

    op_type: str
    name: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, Any]

    @property
    def subgraphs(self) -> list[Writer]:
        """The subgraphs among the attributes."""
        return [value for value in self.attributes.values() if isinstance(value, Writer)]


class Writer:
    """A writer for a graph or subgraph. Its nodes must be valid in `opset`."""

    def __init__(self, opset: int, outer: Writer | None = None) -> None:
        self.opset = opset
        self.root: Writer = self if outer is None else outer.root
        self.nodes: list[Written] = []
        self.inputs: list[Value] = []  # only for a subgraph
        self.outputs: list[Value] = []
        self.arrays: dict[str, Any] = {}  # the arrays that nodes read, by name
        self.sizes = Sizes(self)
        self._constants: dict[Any, Value] = {}
        self._source: dict[str, tuple[Value, tuple[int, ...]]] = {}  # sources of transposes
        self._taken: set[str] = set()
        self._base = self._prefix = ""
        self._numbers: dict[str, itertools.count[int]] = {}

    # Names

    def begin(self, path: str, name: str) -> None:
        """Name the following nodes after an op called `name` in the module at `path`."""
        self._prefix = self.unique("/".join([self._base, *filter(None, path.split(".")), name]))

    def unique(self, name: str) -> str:
        """Reserve and return `name`, with a number appended if it is already taken."""
        root = self.root
        found = name
        while found in root._taken:
            found = f"{name}_{next(root._numbers.setdefault(name, itertools.count(1)))}"
        root._taken.add(found)
        return found

    # Arrays

    def array(self, values: Any, name: str = "", folds: bool = True) -> Value:
        """Return a Value of known elements (`values`). It becomes an initializer called `name` when
        a node reads it. `folds` is as in Value."""
        return Value(name, values.dtype.name, values.shape, values, folds)

    def constant(self, values: Any, dtype: str) -> Value:
        """Return a small constant of `values` in `dtype`. Equal constants are shared."""
        array = np.asarray(values)
        if array.dtype != dtype:
            array = astype(array, dtype)
        root = self.root
        key = dtype, array.shape, array.tobytes()
        if key not in root._constants:
            root._constants[key] = self.array(array)
        return root._constants[key]

    def ints(self, numbers: Sequence[Any]) -> Value:
        """Return sizes, positions or axes (`numbers`) as an int64 vector. Some may be expressions
        of dims."""
        if is_symbolic(numbers):
            return self.root.sizes.vector(numbers)
        return self.constant(np.array(numbers, "int64").reshape(-1), "int64")

    def number(self, extent: Any, dtype: str) -> Value:
        """Return an `extent` as a 0-d value of `dtype`."""
        if isinstance(extent, Expression):
            return self.cast(self.reshape(self.ints([extent]), ()), dtype)
        return self.constant(extent, dtype)

    def read(self, value: Value) -> str:
        """Return the name by which a node reads `value`."""
        if value.array is None:
            return value.name
        root = self.root
        base = name = value.name or "constant"
        for i in itertools.count(2):
            found = root.arrays.get(name)
            if found is None and name not in root._taken:
                root.arrays[name] = value.array
                root._taken.add(name)
                return name
            if found is not None and _is_same_array(found, value.array):
                return name
            name = f"{base}.{i}" if value.name else f"{base}_{i}"
        raise AssertionError("unreachable")

    # Nodes

    def node(
        self,
        op_type: str,
        *inputs: Value | None,
        dtype: Any = None,
        shape: Shape | None = None,
        data: int = 0,
        **attributes: Any,
    ) -> Any:
        """Write a node of the operator `op_type` on `inputs` with `attributes`. Return its Value,
        or several if `dtype` is a tuple.

        Input number `data` determines the dtype of the elements. If the operator has no kernel for
        this dtype, that input and later inputs of the same dtype are widened, and the results are
        narrowed again. Results have the same dtype, unless `dtype` names another. `shape` is the
        shape of the first result, for rules that read it later.
        """
        own = inputs[data].dtype if inputs else ""  # type: ignore[union-attr]
        wide = computed_in(op_type, own)
        read = [
            ""
            if x is None
            else self.read(self.cast(x, wide) if x.dtype == own and i >= data else x)
            for i, x in enumerate(inputs)
        ]
        while read and not read[-1]:
            read.pop()
        wanted = dtype if isinstance(dtype, tuple) else (dtype,)
        name = self.unique(f"{self._prefix}/{op_type}")
        outputs = [
            self.unique(f"{name}_output" + (f"_{i}" if i else "")) for i in range(len(wanted))
        ]
        self.nodes.append(Written(op_type, name, read, outputs, attributes))
        made = [
            self.cast(Value(out, wide, None), own) if of is None else Value(out, of, None)
            for out, of in zip(outputs, wanted, strict=True)
        ]
        made[0].shape = shape
        return tuple(made) if isinstance(dtype, tuple) else made[0]

    def op(
        self, op_type: str, *inputs: Value, dtype: str | None = None, **attributes: Any
    ) -> Value:
        """Write an elementwise operator `op_type`, whose `inputs` broadcast. `dtype` and
        `attributes` are as in `node`."""
        shapes = [x.shape for x in inputs]
        known = None if None in shapes else broadcast_shapes(op_type, *shapes)  # type: ignore
        data = 1 if op_type == "Where" else 0
        made: Value = self.node(op_type, *inputs, dtype=dtype, shape=known, data=data, **attributes)
        return made

    def cast(self, x: Value, dtype: str) -> Value:
        """Cast `x` to `dtype` like needle, which casts floats to small integers through int32."""
        if x.dtype == dtype:
            return x
        if x.array is not None and x.folds and not x.name:
            return self.array(astype(x.array, dtype))
        if dtype in ("int8", "uint8", "int16", "uint16") and x.dtype.startswith(("float", "bfl")):
            x = self.cast(x, "int32")
        if dtype == "bool" and is_half(x.dtype):
            x = self.cast(x, "float32")
        name = self.unique(f"{self._prefix}/Cast")
        out = self.unique(f"{name}_output")
        self.nodes.append(Written("Cast", name, [self.read(x)], [out], {"to": NUMBER[dtype]}))
        return Value(out, dtype, x.shape)

    # Movements

    def transpose(self, x: Value, order: Sequence[int]) -> Value:
        """Return `x` with its axes in another `order`."""
        order = tuple(order)
        if order == tuple(range(len(order))):
            return x
        if x.array is not None and x.folds:
            return self.array(x.array.transpose(order), x.name)
        source, before = self._source.get(x.name, (x, tuple(range(len(order)))))
        both = tuple(before[a] for a in order)
        if both == tuple(range(len(both))):
            return source
        shape = None if x.shape is None else tuple(x.shape[a] for a in order)
        made: Value = self.node("Transpose", source, shape=shape, perm=list(both))
        self._source[made.name] = source, both
        return made

    def reshape(self, x: Value, shape: Sequence[Any]) -> Value:
        """Return `x` in another `shape`."""
        shape = tuple(shape)
        if x.shape is not None and same(x.shape, shape):
            return x
        if x.array is not None and x.folds:
            return self.array(x.array.reshape(shape), x.name)
        source, order = self._source.get(x.name, (x, ()))
        unit = unit_axis(x.shape, shape) if order and x.shape is not None else None
        if unit is not None:  # reshape first, so that the transpose can cancel its inverse
            at, extents = order[unit], list(source.extents)
            if len(shape) > len(order):
                extents.insert(at, 1)
                moved = [a + (a >= at) for a in order]
                moved.insert(unit, at)
            else:
                del extents[at]
                moved = [a - (a > at) for a in order if a != at]
            return self.transpose(self.reshape(source, extents), moved)
        target, zero = reshape_target(x.shape, shape)
        attributes = {"allowzero": 1} if zero else {}
        made: Value = self.node("Reshape", x, self.ints(target), shape=shape, **attributes)
        return made

    def unsqueeze(self, x: Value, *axes: int) -> Value:
        """Return `x` with new axes of extent 1 at `axes` of the result."""
        return self.reshape(x, with_ones(x.extents, axes))

    def squeeze(self, x: Value, *axes: int) -> Value:
        """Return `x` without `axes`, which have extent 1."""
        return self.reshape(x, [n for a, n in enumerate(x.extents) if a not in axes])

    def expand(self, x: Value, shape: Sequence[Any]) -> Value:
        """Broadcast `x` to `shape` along new axes and axes of extent 1."""
        shape = tuple(shape)
        if x.shape is not None and same(x.shape, shape):
            return x
        made: Value = self.node("Expand", x, self.ints(shape), shape=shape)
        return made

    def full(self, value: Any, dtype: str, shape: Sequence[Any]) -> Value:
        """Return a tensor of `shape` and `dtype` filled with `value`."""
        return self.expand(self.constant(value, dtype), shape)

    def slice(
        self, x: Value, axes: Sequence[int], begin: Sequence[Any], end: Sequence[Any],
        step: Sequence[int] | None = None, shape: Shape | None = None,
    ) -> Value:  # fmt: skip
        """Slice `x` along `axes`, from `begin` to before `end` in steps of `step`. With a negative
        step, an end of None means the front. `shape` is the shape of the result."""
        last = [-(2**63) + 1 if e is None else e for e in end]
        steps = [] if step is None or all(s == 1 for s in step) else [self.ints(step)]
        ends = [self.ints(begin), self.ints(last), self.ints(axes), *steps]
        made: Value = self.node("Slice", x, *ends, shape=shape)
        return made

    def concat(self, parts: Sequence[Value], axis: int, shape: Shape | None = None) -> Value:
        """Join `parts` of the same dtype along `axis`. `shape` is the shape of the result."""
        if len(parts) == 1:
            return parts[0]
        made: Value = self.node("Concat", *parts, shape=shape, axis=axis)
        return made

    def gather(self, x: Value, index: Value, axis: int) -> Value:
        """Return the slices of `x` along `axis` at an `index` of any integer dtype."""
        index = index if index.dtype in ("int32", "int64") else self.cast(index, "int64")
        shape = (*x.extents[:axis], *index.extents, *x.extents[axis + 1 :])
        made: Value = self.node("Gather", x, index, shape=shape, axis=axis)
        return made

    def pad(self, x: Value, pairs: Sequence[tuple[Any, Any]], value: Any = 0) -> Value:
        """Pad `x` with `value`: `pairs` has the numbers of elements (before, after) for each
        axis."""
        if all(same(n, 0) for pair in pairs for n in pair):
            return x
        shape = tuple(n + low + high for n, (low, high) in zip(x.extents, pairs, strict=True))
        widths = self.ints([*(low for low, _ in pairs), *(high for _, high in pairs)])
        made: Value = self.node("Pad", x, widths, self.constant(value, x.dtype), shape=shape)
        return made

    def reduce(self, op_type: str, x: Value, axes: Sequence[int], keepdims: bool) -> Value:
        """Reduce `x` over `axes` by the operator `op_type`. `axes` may be empty."""
        if not axes:
            return x
        shape = tuple(
            1 if a in axes else n for a, n in enumerate(x.extents) if keepdims or a not in axes
        )
        made: Value = self.node(op_type, x, self.ints(axes), shape=shape, keepdims=int(keepdims))
        return made

    # Subgraphs

    def subgraph(self, name: str, inputs: Sequence[tuple[str, str, Shape | None]]) -> Writer:
        """Return the writer of a subgraph called `name`; `inputs` has the (name, dtype, shape) of
        each input."""
        body = Writer(self.opset, self)
        body._base = body._prefix = self.unique(f"{self._prefix}/{name}")
        for each, dtype, shape in inputs:
            body.inputs.append(Value(body.unique(f"{body._base}/{each}"), dtype, shape))
        return body

    def scan(
        self,
        states: Sequence[Value],
        xs: Sequence[Value],
        step: Callable[..., tuple[Sequence[Value], Sequence[Value]]],
        axis: int = 0,
        reverse: bool = False,
    ) -> tuple[list[Value], list[Value]]:
        """Write a Scan and return its last states and stacked outputs. `step(w, *states, *slices)
        -> (states, outputs)` is written once. It runs for each slice of `xs` along `axis`, from the
        end if `reverse`."""
        slices = [tuple(n for a, n in enumerate(x.extents) if a != axis) for x in xs]
        body = self.subgraph(
            "step",
            [("state", x.dtype, x.shape) for x in states]
            + [("slice", x.dtype, shape) for x, shape in zip(xs, slices, strict=True)],
        )
        after, outputs = step(body, *body.inputs)
        body.outputs = [body.own(v) for v in (*after, *outputs)]
        made: tuple[Value, ...] = self.node(
            "Scan",
            *states,
            *xs,
            dtype=tuple(v.dtype for v in body.outputs),
            body=body,
            num_scan_inputs=len(xs),
            scan_input_axes=[axis] * len(xs),
            scan_input_directions=[int(reverse)] * len(xs),
            scan_output_axes=[axis] * len(outputs),
            scan_output_directions=[int(reverse)] * len(outputs),
        )
        lasts, stacked = list(made[: len(states)]), list(made[len(states) :])
        for value, first in zip(lasts, states, strict=True):
            value.shape = first.shape
        for value, out in zip(stacked, outputs, strict=True):
            whole = list(out.extents)
            whole.insert(axis, xs[0].extents[axis])
            value.shape = tuple(whole)
        return lasts, stacked

    def own(self, value: Value) -> Value:
        """Return a copy of a `value` under a separate name, which every output of a graph needs."""
        made: Value = self.node("Identity", value, shape=value.shape)
        return made


def _is_same_array(a: Any, b: Any) -> bool:
    return a is b or (
        (a.shape, a.strides, a.dtype) == (b.shape, b.strides, b.dtype)
        and a.__array_interface__["data"] == b.__array_interface__["data"]
    )
