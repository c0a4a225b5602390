"""Builds one function from the kernels of bodies: its parameters, and the memory of each value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from needle_tvm._tvm.names import PrimFunc, Target, tirx
from needle_tvm.kernels.blocks import item_bytes
from needle_tvm.lower.bodies import Body
from needle_tvm.lower.region import place_values
from needle_tvm.tir import nests, regions, tasks
from needle_tvm.tir.functions import simplified, variables_of

Place = tuple[Any, Any]  # a flat buffer, and the index of the value's first element in it
Shaped = tuple[Sequence[Any], str]  # the shape of a value, in the caller's variables, and its dtype
ZERO = tirx.const(0, "int64")


@dataclass(frozen=True)
class Plan:
    """The function of a loop or a choice. It takes values, the `constants` of its bodies and
    `numbers`, and writes its results and `workspaces` (the dtype and number of elements of
    each)."""

    function: PrimFunc
    constants: list[Any]
    numbers: list[Any]  # variables with the names of the caller's variables
    workspaces: list[tuple[str, Any]]


class Frame:
    """Builds the function of a loop or a choice. `shapes` are the shapes of all its values; `add`
    adds called functions to the module."""

    def __init__(
        self, bodies: Sequence[Body], shapes: Iterable[Any], add: Callable[[PrimFunc], Any]
    ) -> None:
        self._bodies, self._add = bodies, add
        self._own: dict[Any, Any] = {}  # a caller's variable -> the function's variable
        by_name: dict[str, Any] = {}
        variables = [v for body in bodies for v in body.region.callers()]
        extents = [extent for shape in shapes for extent in shape if not isinstance(extent, int)]
        for variable in [*variables, *[v for each in extents for v in variables_of(each)]]:
            name = str(variable.name)
            by_name.setdefault(name, tirx.Var(name, "int64"))
            self._own[variable] = by_name[name]
        self.numbers = list(by_name.values())
        self.places: dict[Any, Place] = {}
        self.memories: list[Any] = []
        self._declared: list[Any] = []
        self._workspaces: list[tuple[str, Any]] = []

    def put(self, expr: Any) -> Any:
        """Return an extent of the caller in terms of the function's own variables."""
        if isinstance(expr, int):
            return tirx.const(expr, "int64")
        return simplified(nests.substitute(expr, self._own)) if self._own else expr

    def size(self, shape: Sequence[Any]) -> Any:
        """Return the number of elements of a shape."""
        total = tirx.const(1, "int64")
        for extent in shape:
            total = total * self.put(extent)
        return simplified(total)

    def parameter(self, name: str, of: Shaped) -> Any:
        shape, dtype = of
        return regions.new_buffer(name, [self.put(n) for n in shape], dtype)

    def flat(self, parameter: Any) -> Any:
        """Return a flat view of a parameter's memory."""
        view = regions.new_buffer(
            f"{parameter.name}_flat", [self.size(parameter.shape)], parameter.dtype
        )
        self._declared.append(regions.declared_over(view, parameter))
        return view

    def workspace(self, name: str, dtype: str, elements: Any) -> Any:
        """Return memory that the caller provides for `elements` elements, an expression of the
        function's variables."""
        self._workspaces.append((dtype, elements))
        self.memories.append(regions.new_buffer(name, [elements], dtype))
        return self.memories[-1]

    def place_others(self) -> None:
        """Give a place in a workspace to each value of the bodies that has none yet. Values of
        different bodies may share memory."""
        parts: dict[str, list[Any]] = {}
        for body in self._bodies:
            values = [v for v in body.region.values() if v.key not in self.places]
            for dtype in sorted({value.dtype for value in values}):
                chosen = [value for value in values if value.dtype == dtype]
                offsets, total = place_values(chosen, item_bytes(dtype), body.region.bounds)
                parts.setdefault(dtype, []).append((offsets, self.put(total)))
        for dtype in sorted(parts):
            total = parts[dtype][0][1]
            for _, other in parts[dtype][1:]:
                total = simplified(tirx.max(total, other))
            memory = self.workspace(f"workspace_{dtype}", dtype, total)
            for offsets, _ in parts[dtype]:
                self.places.update({k: (memory, self.put(n)) for k, n in offsets.items()})

    def phases(
        self, body: Body, target: Target, alone: bool, repeated: bool = True
    ) -> tuple[list[list[Any]], bool]:
        """Return the phases of a body's kernels, and whether several threads run them. With
        `alone`, one thread does. `repeated` is as in `Region.phases`."""
        region = body.region
        phases, several = region.on_one_thread(), False
        if not alone:
            phases, several = region.phases(target, repeated)
        places = {buffer: self.places[key] for buffer, key in region.buffers()}
        made = [
            [regions.placed_in(tasks.shared(nest, places, self._add), places) for nest in phase]
            for phase in phases
        ]
        return [phase for phase in made if phase], several

    def function(
        self, before: Sequence[Any], results: Sequence[Any], statements: Sequence[Any]
    ) -> PrimFunc:
        """Return the function with these parameters, results and statements."""
        parameters = [*before, *self.numbers, *results, *self.memories]
        made = regions.function_of(parameters, [*self._declared, *statements])
        values: dict[Any, Any] = {}
        for body in self._bodies:
            values |= {v: self.put(value) for v, value in body.region.symbols().items()}
        return made.with_body(nests.substitute(made.body, values)) if values else made

    def plan(self, function: PrimFunc, constants: list[Any]) -> Plan:
        return Plan(function, constants, self.numbers, self._workspaces)


def copied(source: Place, to: Place, elements: Any) -> Any:
    """Return a loop that copies elements."""
    i = tirx.Var("i", "int64")
    store = tirx.BufferStore(to[0], source[0][source[1] + i], [to[1] + i])
    return tirx.For(i, ZERO, elements, tirx.ForKind.SERIAL, store)


def spec_of(key: Any) -> Shaped:
    """Return the shape and dtype of a Relax value."""
    return list(key.ty.shape.values), str(key.ty.dtype)


Specs = Mapping[Any, Shaped]
