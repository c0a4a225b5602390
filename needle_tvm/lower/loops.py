"""A loop of a model as one function: the kernels of its body, step after step.

The body of a `needle.scan` is lowered and scheduled like a model of its own, so that its products
read packed weights and its elementwise work is fused. What its passes compute from constants alone
(packed weights) runs before the loop. The kernels become one function (`Loop`):

    copy the first states
    for t in range(length):  # in one parallel region, with barriers between phases, if threads pay
        the kernels of a step: states in two slots each, in turns; slices and outputs at t
    copy the last states

A loop on one thread has no region and no barriers. A loop inside a loop's body is on one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from needle_tvm._tvm.names import Constant, IRModule, PrimFunc, Target, relax, tirx
from needle_tvm.errors import TranslationError
from needle_tvm.graph.dependence import is_op
from needle_tvm.lower.region import Kernel, Region
from needle_tvm.tir import nests, regions
from needle_tvm.tir.extents import bounds_of
from needle_tvm.tir.functions import simplified

_CHUNK = 1 << 12  # elements that one task of a parallel copy copies


@dataclass
class _Body:
    """The calls of a lowered body's `main`, with the values that they read and write by key."""

    parameters: list[Any]
    results: list[Any]  # keys
    kernels: list[tuple[Kernel, list[Any]]] = field(default_factory=list)  # with operands
    made: set[Any] = field(default_factory=set)  # keys of what kernels write


def body_of(module: IRModule, target: Target) -> _Body:
    """Take the scheduled module of a body apart. Raises TranslationError for what is no plain list
    of kernels."""
    main = module["main"]
    body = _Body(list(main.params), [])
    source: dict[Any, Any] = {}  # a variable -> the key of the value that it names or views
    parts: dict[Any, list[Any]] = {}  # the keys of a tuple's parts
    lowered: dict[Any, PrimFunc] = {}

    def key(value: Any) -> Any:
        return source.get(value, value)

    for block in main.body.blocks:
        for binding in block.bindings:
            value, var = binding.value, binding.var
            if is_op(value, "relax.reshape"):
                source[var] = key(value.args[0])
            elif isinstance(value, (relax.Var, Constant)):
                source[var] = key(value)
                parts[var] = parts.get(value, [])
            elif isinstance(value, relax.Tuple):
                parts[var] = [key(each) for each in value.fields]
            elif isinstance(value, relax.TupleGetItem):
                source[var] = parts[value.tuple_value][value.index]
            elif is_op(value, "relax.call_tir"):
                function = module[value.args[0]]
                if value.args[0] not in lowered:
                    alone = regions.lowered(function, target)
                    lowered[value.args[0]] = regions.from_the_start(alone)
                kernel = Kernel.of(function, lowered[value.args[0]], value)
                if kernel is None:
                    raise TranslationError(f"kernel {value.args[0].name_hint} of a loop")
                results = [var]
                if isinstance(var.ty, relax.TupleType):
                    results = parts[var] = [(var, n) for n in range(len(var.ty.fields))]
                operands = [key(each) for each in kernel.arguments]
                body.kernels.append((kernel, [*operands, *results]))
                body.made.update(results)
            else:
                raise TranslationError(f"{value} in the body of a loop")
    end = main.body.body
    ends = parts[end] if parts.get(end) else None
    if ends is None:
        ends = [key(each) for each in end.fields] if isinstance(end, relax.Tuple) else [key(end)]
    body.results = ends
    return body


@dataclass(frozen=True)
class Layout:
    """What a loop's function takes and returns, by the keys of its body's values: the states before
    and after a step, the slices of sequences, and what is stacked. `specs` has the shape and dtype
    of each of them, in TVM's expressions."""

    states: Sequence[tuple[Any, Any]]
    slices: Sequence[Any]
    stacked: Sequence[Any]
    specs: Mapping[Any, tuple[Sequence[Any], str]]
    length: Any
    reverse: bool


@dataclass(frozen=True)
class Plan:
    """A loop's function. It takes the first states, the sequences, `constants` and `symbols`; it
    returns the last states, what is stacked, and `workspaces` (dtype and number of elements)."""

    function: PrimFunc
    constants: list[Any]
    symbols: dict[Any, Any]  # variables of the caller, and the function's own
    workspaces: list[tuple[str, Any]]


class Loop:
    """Builds the function of a loop."""

    def __init__(self, body: _Body, layout: Layout, module: IRModule, target: Target) -> None:
        self._body, self._layout, self._target = body, layout, target
        self._region = Region(bounds_of(module["main"]))
        self._t = tirx.Var("t", "int64")
        # A value that is two states, or a state and stacked, has one place, and is copied.
        self._after: dict[Any, int] = {}
        for number, (_, after) in enumerate(layout.states):
            self._after.setdefault(after, number)
        for kernel, operands in body.kernels:
            self._region.add(kernel, operands)

    def plan(self, add: Callable[[PrimFunc], Any], alone: bool) -> Plan:
        """The function; `add` enters functions that it calls into the module. With `alone`, it runs
        on one thread."""
        layout, region = self._layout, self._region
        t = self._t
        befores = [before for before, _ in layout.states]
        is_known = {*befores, *layout.slices}
        used = [key for _, operands in self._body.kernels for key in operands]
        used += [*(after for _, after in layout.states), *layout.stacked]
        constants = [
            key for key in dict.fromkeys(used) if key not in is_known and key not in self._body.made
        ]
        # Scratch of a kernel is no value of the body.
        own = {v: tirx.Var(v.name, "int64") for v in self._variables(constants)}

        def put(expr: Any) -> Any:
            if isinstance(expr, int):
                return tirx.const(expr, "int64")
            return simplified(nests.substitute(expr, own)) if own else expr

        def size(key: Any) -> Any:
            shape, _ = layout.specs[key]
            total = tirx.const(1, "int64")
            for extent in shape:
                total = total * put(extent)
            return simplified(total)

        length = put(layout.length)
        at = length - 1 - t if layout.reverse else t

        def tensor(name: str, shape: Sequence[Any], dtype: str) -> Any:
            return tirx.decl_buffer([put(n) for n in shape], dtype, name, layout=None)

        def whole(key: Any) -> tuple[Sequence[Any], str]:
            shape, dtype = layout.specs[key]
            return (layout.length, *shape), dtype

        first = [tensor(f"s{n}", *layout.specs[key]) for n, key in enumerate(befores)]
        sequences = [tensor(f"x{n}", *whole(key)) for n, key in enumerate(layout.slices)]
        fixed = [tensor(f"c{n}", *_spec_of(key)) for n, key in enumerate(constants)]
        last = [tensor(f"e{n}", *layout.specs[key]) for n, key in enumerate(befores)]
        stacked = [tensor(f"y{n}", *whole(key)) for n, key in enumerate(layout.stacked)]
        declared: list[Any] = []

        def flat(buffer: Any) -> Any:
            total = tirx.const(1, "int64")
            for extent in buffer.shape:
                total = total * extent
            view = tirx.decl_buffer(
                [simplified(total)], buffer.dtype, f"{buffer.name}_flat", layout=None
            )
            declared.append(regions.declared_over(view, buffer))
            return view

        workspaces: list[tuple[str, Any]] = []
        memories: list[Any] = []

        def workspace(name: str, dtype: str, elements: Any) -> Any:
            workspaces.append((dtype, elements))
            memories.append(tirx.decl_buffer([elements], dtype, name, layout=None))
            return memories[-1]

        # Where each value is in a step: (memory, first element).
        places: dict[Any, tuple[Any, Any]] = {}
        slots, firsts, lasts = [], list(map(flat, first)), list(map(flat, last))
        for number, before in enumerate(befores):
            n = size(before)
            slot = workspace(f"state{number}", layout.specs[before][1], 2 * n)
            slots.append(slot)
            parity = tirx.floormod(t, tirx.const(2, "int64"))
            places[before] = slot, parity * n
            after = layout.states[number][1]
            if self._after[after] == number and after not in is_known and after not in constants:
                places[after] = slot, (1 - parity) * n
        for key, buffer in zip(layout.slices, sequences, strict=True):
            places[key] = flat(buffer), at * size(key)
        for key, buffer in zip(constants, fixed, strict=True):
            places[key] = flat(buffer), tirx.const(0, "int64")
        outputs = list(map(flat, stacked))
        for key, buffer in zip(layout.stacked, outputs, strict=True):
            if key not in places:
                places[key] = buffer, at * size(key)
        inner = [value for value in region._values.values() if value.key not in places]
        for value in inner:
            value.first = max(value.first, 0)
        for dtype in sorted({value.dtype for value in inner}):
            from needle_tvm.kernels.blocks import item_bytes
            from needle_tvm.lower.region import _place

            values = [value for value in inner if value.dtype == dtype]
            offsets, total = _place(values, item_bytes(dtype), region.bounds)
            memory = workspace(f"workspace_{dtype}", dtype, put(total))
            places.update({key: (memory, put(offset)) for key, offset in offsets.items()})

        def copy(source: tuple[Any, Any], to: tuple[Any, Any], n: Any) -> Any:
            i = tirx.Var("i", "int64")
            store = tirx.BufferStore(to[0], source[0][source[1] + i], [to[1] + i])
            return tirx.For(i, tirx.const(0, "int64"), n, tirx.ForKind.SERIAL, store)

        copies: list[Any] = []  # at the end of a step
        early: list[Any] = []  # at its beginning: of what was there before
        late: list[Any] = []  # behind the loop
        for number, (before, after) in enumerate(layout.states):
            parity = tirx.floormod(t, tirx.const(2, "int64"))
            n = size(before)
            to = slots[number], (1 - parity) * n
            if places[after][0] is not slots[number] or after == before:
                copies.append(copy(places[after], to, n))
        for key, buffer in zip(layout.stacked, outputs, strict=True):
            n = size(key)
            if places[key][0] is buffer:
                continue
            if key in befores:
                early.append(copy(places[key], (buffer, at * n), n))
            elif key in self._after and places[key][0] is slots[self._after[key]]:
                if self._stores_twice(key, (buffer, at * n), places):
                    continue
                number = self._after[key]
                previous = at + 1 if layout.reverse else at - 1
                done = copy(places[befores[number]], (buffer, previous * n), n)
                early.append(tirx.IfThenElse(t > 0, done, None))
                end = tirx.const(0, "int64") if layout.reverse else (length - 1) * n
                final = slots[number], tirx.floormod(length, tirx.const(2, "int64")) * n
                late.append(copy(final, (buffer, end), n))
            else:
                copies.append(copy(places[key], (buffer, at * n), n))
        before_loop = [
            copy((source, 0), (slot, 0), size(key))
            for source, slot, key in zip(firsts, slots, befores, strict=True)
        ]
        for number, key in enumerate(befores):
            n = size(key)
            final = slots[number], tirx.floormod(length, tirx.const(2, "int64")) * n
            late.append(copy(final, (lasts[number], 0), n))

        by_buffer = {buffer: places[key] for buffer, key in region._places}
        values = {var: put(value) for var, value in region._symbols.items()}
        from needle_tvm.tir import tasks

        several = (
            not alone and bool(region._phases[0]) and region.threads_from(self._target) is not None
        )
        phases = region.phases(self._target) if several else region._on_one_thread()
        phases = [
            [regions.placed_in(tasks.shared(nest, by_buffer, add), by_buffer) for nest in phase]
            for phase in phases
        ]
        phases = [phase for phase in phases if phase]
        if early:
            phases = [[*early, *phases[0]], *phases[1:]] if phases else [early]
        if copies:
            phases.append(copies)
        made = regions.loop_function(
            [*first, *sequences, *fixed, *own.values(), *last, *stacked, *memories],
            declared,
            before_loop,
            (t, length, phases),
            late,
            several,
        )
        made = made.with_body(nests.substitute(made.body, values)) if values else made
        return Plan(made, constants, own, workspaces)

    def _stores_twice(self, key: Any, place: tuple[Any, Any], places: dict[Any, Any]) -> bool:
        """Let the nests that write a value write it to another place as well, if they can."""
        region = self._region
        buffers = [buffer for buffer, owner in region._places if owner == key]
        phases = [list(phase) for phase in region._phases]
        written = False
        for phase in phases:
            for number, nest in enumerate(phase):
                for buffer in buffers:
                    _, stores = regions.buffers_in(nest) or (set(), set())
                    if buffer not in stores:
                        continue
                    other = regions.new_buffer(f"{buffer.name}_too", buffer.shape, buffer.dtype)
                    twice = regions.stored_twice(nest, buffer, other)
                    if twice is None:
                        return False
                    phase[number] = nest = twice
                    region._places.append((other, other))
                    places[other] = place
                    written = True
        if written:
            region._phases = phases
        return written

    def _variables(self, constants: Sequence[Any]) -> list[Any]:
        from needle_tvm.tir.functions import variables_of

        found: dict[Any, None] = dict.fromkeys(self._region._callers())
        layout = self._layout
        for shape, _ in (*layout.specs.values(), *map(_spec_of, constants)):
            for extent in shape:
                if not isinstance(extent, int):
                    found |= dict.fromkeys(variables_of(extent))
        if not isinstance(layout.length, int):
            found |= dict.fromkeys(variables_of(layout.length))
        return list(found)


def _spec_of(key: Any) -> tuple[Sequence[Any], str]:
    return list(key.ty.shape.values), str(key.ty.dtype)
