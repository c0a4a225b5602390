"""Turns several kernels into steps of one function: phases between barriers, and a workspace.

A step is one loop nest of a kernel. Steps are assigned to phases in order. A new phase begins if a
step accesses a value that another step wrote in the current phase, or writes a value that another
step accessed in that phase. Two steps on one thread need no barrier between them. Two parallel
loops are fused if each iteration accesses the same part of the values that they share
(`regions.joined`): memory that does not fit into a cache is then read once for both.

A buffer that only the region uses becomes a slot of a workspace; there is one workspace per dtype.
Slots are placed largest first, each at the lowest offset that is free during its lifetime
(Pisarchyk and Lee, "Efficient memory management for deep neural net inference", 2020, greedy by
size). Lifetimes are counted in phases: within one phase, a thread may be ahead of another.

Sizes may be symbolic. Then slots that are used at the same time are placed so that they do not
overlap at any size. If threads pay off only at some sizes, the function has all steps twice, for
one thread and for several, and chooses by size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from needle_tvm._tvm.names import PrimFunc, Target, TensorType, tirx
from needle_tvm.kernels.blocks import item_bytes
from needle_tvm.kernels.variants import either
from needle_tvm.target.info import target_info
from needle_tvm.tir import extents, nests, regions, tasks
from needle_tvm.tir.extents import substituted
from needle_tvm.tir.functions import simplified, variables_of

_CACHE_LINE = 64  # bytes; two slots never share a line

# Measured costs, in instructions at about four per nanosecond: waking the pool (1 us on two cores
# of a Zen 4), one barrier (0.5 us), and the barrier at the end of a loop's step, which also waits
# for the slower thread.
_WAKING, _WAITING, _STEP = 4000, 2000, 3000

_PRECISION = 1 / 64  # on a log scale, of the search for the size from which on threads pay off


@dataclass(frozen=True)
class Kernel:
    """The parts of a call to a scheduled function. Its buffers are those of the lowered
    function."""

    arguments: tuple[Any, ...]  # tensors of the call, without the result
    parameters: tuple[Any, ...]  # a buffer for each argument, and one for the result
    scratch: tuple[Any, ...]  # buffers that one nest writes and another reads
    views: dict[Any, Any]  # buffer -> the parameter or scratch buffer whose memory it is
    nests: tuple[Any, ...]
    symbols: dict[Any, Any]  # a symbolic extent's variable -> its value in the caller's variables
    whole: bool = False  # whether its only nest is the whole function, whose accesses are unknown

    @classmethod
    def called(cls, function: PrimFunc, lowered: PrimFunc, call: Any) -> Kernel:
        """Return the kernel of a call to a function that is not a plain list of loop nests. It is
        one step: a separate function in the generated code, run by one thread."""
        values = extents.arguments_for(function, call)
        lowered, statements = regions.copied(lowered)
        symbols = dict(zip(extents.symbols_of(lowered), values.values(), strict=True))
        arguments = [each for each in call.args[1].fields if isinstance(each.ty, TensorType)]
        parameters = [each for each in lowered.params if tirx.is_buffer_var(each)]
        nest = tasks.apart(regions.all_serial(regions.in_sequence(statements)))
        return cls(tuple(arguments), tuple(parameters), (), {}, (nest,), symbols, True)

    @classmethod
    def of(
        cls, function: PrimFunc, lowered: PrimFunc, call: Any, lanes: int | None = None
    ) -> Kernel | None:
        """Return the kernel of a call; `lowered` is the called function after `regions.lowered`.

        Return None if the function is not a list of loop nests over buffers of known shape. With
        `lanes`, the number of float32 lanes of the target's vectors, loop bodies of known sizes
        also become separate functions."""
        values = extents.arguments_for(function, call)
        lowered, statements = regions.copied(lowered)
        symbols = dict(zip(extents.symbols_of(lowered), values.values(), strict=True))
        arguments = [each for each in call.args[1].fields if isinstance(each.ty, TensorType)]
        parameters = [each for each in lowered.params if tirx.is_buffer_var(each)]
        views: dict[Any, Any] = {}
        scratch: list[Any] = []
        nests: list[Any] = []
        owners = set(parameters)
        statements = regions.bodies_apart(statements, bool(symbols), lanes)
        if all(regions.is_serial(each) for each in statements):  # one step with its own scratch
            body = [each for each in statements if not regions.is_view(each)]
            statements = [each for each in statements if regions.is_view(each)]
            nests = [regions.in_sequence(body)] if body else []
        for statement in statements:
            if regions.is_view(statement):
                owner = regions.memory_of(statement)
                owner = views.get(owner, owner)
                if owner not in owners:
                    return None
                views[statement.buffer] = owner
            elif regions.is_shared_allocation(statement):
                scratch.append(statement.buffer)
                owners.add(statement.buffer)
            elif isinstance(statement, tirx.IfThenElse) and not (
                symbols or regions.is_serial(statement)
            ):
                return None
            elif regions.is_parallel(statement) or regions.is_serial_loop(statement):
                nests.append(statement)
            else:
                return None
        sized = all(regions.is_sized(buffer, symbols) for buffer in (*owners, *views))
        known = all(regions.buffers_in(nest) is not None for nest in nests)
        results = len(extents.new_results(call))
        if not (nests and sized and known and len(parameters) == len(arguments) + results):
            return None
        return cls(
            tuple(arguments), tuple(parameters), tuple(scratch), views, tuple(nests), symbols
        )


@dataclass
class _Value:
    """A value in memory: an argument, a result, or scratch of one kernel."""

    key: Hashable
    shape: list[Any]  # extents in the caller's variables
    dtype: str
    first: int = 0  # the first phase in which it is alive
    last: int = 0  # the last phase in which it is alive
    written: bool = False


@dataclass(frozen=True)
class _Step:
    """The values that a nest accesses, by their keys."""

    touched: set[Any]
    written: set[Any]
    serial: bool

    def waits_for(self, other: _Step) -> bool:
        """Return whether one of the two steps accesses a value that the other writes, unless one
        thread runs both in order."""
        return bool(self.conflicts(other)) and not (self.serial and other.serial)

    def conflicts(self, other: _Step) -> set[Any]:
        """Return the values that one of the two steps writes and the other accesses."""
        return (self.touched & other.written) | (self.written & other.touched)

    def with_(self, other: _Step) -> _Step:
        """Return one step that stands for both."""
        return _Step(self.touched | other.touched, self.written | other.written, False)


@dataclass
class Plan:
    """A merged function. Its parameters are `inputs` and `symbols`, then the requested results,
    then the workspaces."""

    function: PrimFunc
    inputs: list[Any]
    symbols: list[Any]  # the caller's variables of symbolic extents
    workspaces: list[tuple[str, Any]]  # dtype and number of elements


@dataclass
class Region:
    """Collects the kernels of one region. `bounds` has the bounds of the variables that are the
    caller's symbolic extents."""

    bounds: extents.Bounds = field(default_factory=dict)
    _symbols: dict[Any, Any] = field(default_factory=dict)  # of all kernels
    _values: dict[Any, _Value] = field(default_factory=dict)
    _places: list[tuple[Any, Any]] = field(default_factory=list)  # (buffer, key of its value)
    _keys: dict[Any, Any] = field(default_factory=dict)  # by buffer, of all kernels
    _phases: list[list[Any]] = field(default_factory=lambda: [[]])
    _steps: list[_Step] = field(default_factory=list)  # of the last phase

    def add(self, kernel: Kernel, operands: Sequence[Any]) -> None:
        """Add a kernel; `operands` are the keys of its parameters' values, its results last.

        A key may be any object. Equal keys mean the same memory.
        """
        owners = dict(zip(kernel.parameters, operands, strict=True))
        owners |= {buffer: buffer for buffer in kernel.scratch}
        self._symbols |= kernel.symbols
        for buffer, key in owners.items():
            shape = [substituted(extent, kernel.symbols) for extent in buffer.shape]
            self._values.setdefault(key, _Value(key, shape, str(buffer.dtype), first=-1))
        keys = owners | {view: owners[owner] for view, owner in kernel.views.items()}
        self._keys |= keys
        direct: set[Any] = set()
        for nest in kernel.nests:
            touched, written = regions.buffers_in(nest) or (set(), set())
            if kernel.whole:
                count = len(kernel.arguments)
                touched, written = set(kernel.parameters), set(kernel.parameters[count:])
            direct |= touched
            self._step(
                nest,
                {keys[buffer] for buffer in touched if buffer in keys},
                {keys[buffer] for buffer in written if buffer in keys},
            )
        self._places += [(buffer, key) for buffer, key in keys.items() if buffer in direct]

    def _step(self, nest: Any, touched: set[Any], written: set[Any]) -> None:
        step = _Step(touched, written, not regions.is_parallel(nest))
        before = [n for n, each in enumerate(self._steps) if step.waits_for(each)]
        places = before or self._alike(step)
        joined = self._joined(places[0], nest, step) if len(places) == 1 else None
        if joined is not None:
            self._phases[-1][places[0]] = joined
            self._steps[places[0]] = self._steps[places[0]].with_(step)
        else:
            if before:
                self._phases.append([])
                self._steps = []
            self._phases[-1].append(nest)
            self._steps.append(step)
        for key in touched:
            value = self._values[key]
            value.last = len(self._phases) - 1
            value.first = value.last if value.first < 0 else value.first
            value.written |= key in written

    def _alike(self, step: _Step) -> list[int]:
        """Return [index of the phase's last parallel step] if `step` is parallel too and both
        access a common value, else []."""
        shared = [n for n, each in enumerate(self._steps) if not each.serial][-1:]
        if step.serial or not any(self._steps[n].touched & step.touched for n in shared):
            return []
        return shared

    def _joined(self, place: int, nest: Any, step: _Step) -> Any:
        """Return the phase's nest number `place` fused with `nest`; None if they cannot be
        fused."""
        other = self._steps[place]
        shared = other.conflicts(step)

        def key_of(buffer: Any) -> Any:
            key = self._keys.get(buffer)
            return key if key in shared else None

        return regions.joined(self._phases[-1][place], nest, key_of)

    def symbols(self) -> Mapping[Any, Any]:
        """Return the variables in kernels' extents, with their values in terms of the caller's
        variables."""
        return self._symbols

    def values(self) -> list[_Value]:
        """Return all values; unused values get phase 0 as their lifetime."""
        for value in self._values.values():
            value.first = max(value.first, 0)
        return list(self._values.values())

    def buffers(self) -> list[tuple[Any, Hashable]]:
        """Return the buffers of kernels, each with the key of its value."""
        return self._places

    def store_twice(self, key: Any) -> list[Any]:
        """Let the nests that write a value also write it to new buffers, one for each buffer that
        they write. Return the new buffers; each is its own key. Return [] and change nothing if a
        nest cannot do this."""
        buffers = [buffer for buffer, owner in self._places if owner == key]
        phases, added = [list(phase) for phase in self._phases], []
        for phase in phases:
            for number, nest in enumerate(phase):
                for buffer in buffers:
                    _, stores = regions.buffers_in(nest) or (set(), set())
                    if buffer not in stores:
                        continue
                    other = regions.new_buffer(f"{buffer.name}_too", buffer.shape, buffer.dtype)
                    twice = regions.stored_twice(nest, buffer, other)
                    if twice is None:
                        return []
                    phase[number] = nest = twice
                    added.append(other)
        self._phases = phases
        self._places += [(other, other) for other in added]
        return added

    def phases(self, target: Target, repeated: bool = False) -> tuple[list[list[Any]], bool]:
        """Return the steps by phase, and whether several threads run them. If several threads are
        never faster, all steps form one phase. With `repeated`, the region is a step of a loop in
        which threads stay awake."""
        several = self.threads_from(target, repeated) is not None
        return self._phases if several else self.on_one_thread(), several

    def takes_threads_back(self, target: Target) -> bool:
        """Return whether, at some sizes, one thread should run steps that a schedule rule has
        parallelised."""
        if self.threads_from(target) == {}:
            return False
        return any(regions.is_parallel(nest) for phase in self._phases for nest in phase)

    def threads_from(self, target: Target, repeated: bool = False) -> dict[Any, int] | None:
        """Return sizes by variable: several threads are faster if the product of the actual sizes
        is at least the product of these. Return {} if several threads are always faster, and None
        if they never are. `repeated` is as in `phases`."""
        if self._pays(self._sizes(0.0), target, repeated):
            return {}
        if not self._pays(self._sizes(1.0), target, repeated):
            return None
        low, high = 0.0, 1.0
        while self._sizes(low) != self._sizes(high) and high - low > _PRECISION:
            middle = (low + high) / 2
            pays = self._pays(self._sizes(middle), target, repeated)
            low, high = (low, middle) if pays else (middle, high)
        return self._sizes(high)

    def _sizes(self, place: float) -> dict[Any, int]:
        """Return sizes of the caller's variables. `place` is a position on a log scale from 0,
        their least sizes, to 1, their largest."""
        found = {}
        for variable in self.callers():
            low, high = self.bounds[variable]
            least, most = max(1, low), extents.UNBOUNDED if high is None else max(1, high)
            found[variable] = round(least * (most / least) ** place)
        return found

    def callers(self) -> list[Any]:
        """Return the caller's variables on which kernels' sizes depend."""
        return list(dict.fromkeys(v for e in self._symbols.values() for v in variables_of(e)))

    def _pays(self, sizes: dict[Any, int], target: Target, repeated: bool) -> bool:
        """Return whether several threads are faster at these sizes of the caller's variables."""
        threads = target_info(target).cores
        lanes = target_info(target).lanes("float32")
        own = {var: int(substituted(value, sizes)) for var, value in self._symbols.items()}
        shared = [nest for phase in self._phases for nest in phase if regions.is_parallel(nest)]
        work = sum(regions.instructions(nest, lanes, own) for nest in shared)
        cost = _STEP if repeated else _WAKING
        return work * (threads - 1) // threads > cost + _WAITING * (len(self._phases) - 1)

    def on_one_thread(self) -> list[list[Any]]:
        """Return all steps as one phase of serial nests."""
        return [[regions.serial(nest) for phase in self._phases for nest in phase]]

    def plan(
        self,
        results: Sequence[Any],
        target: Target,
        add: Callable[[PrimFunc], Any],
        over: Mapping[Any, Sequence[Any]] | None = None,
    ) -> Plan:
        """Return the merged function that returns the values with the keys `results`. `add` adds
        called functions to the module (`tasks.shared`). `over` has the keys and shapes of values
        that the function reads and then overwrites: they are further inputs."""
        over = over or {}
        # Values in `over` are inputs although they are written; they are added after the others.
        inputs = [v for v in self._values.values() if not v.written and v.key not in over]
        for key, shape in over.items():
            self._values[key].shape = list(shape)
            inputs.append(self._values[key])
        outside = [*inputs, *(self._values[key] for key in results)]
        callers = self.callers()
        own = {variable: tirx.Var(variable.name, str(variable.ty)) for variable in callers}
        buffers = {value.key: _like(value, f"p{n}", own) for n, value in enumerate(outside)}
        parameters = list(buffers.values())
        parameters[len(inputs) : len(inputs)] = own.values()
        inner = [value for value in self._values.values() if value.key not in buffers]
        slots: dict[Any, tuple[Any, int]] = {}
        workspaces = []
        for dtype in sorted({value.dtype for value in inner}):
            values = [value for value in inner if value.dtype == dtype]
            offsets, size = place_values(values, item_bytes(dtype), self.bounds)
            workspaces.append((dtype, size))
            workspace = regions.new_buffer(f"workspace_{dtype}", [substituted(size, own)], dtype)
            parameters.append(workspace)
            slots |= {key: (workspace, substituted(offset, own)) for key, offset in offsets.items()}
        views = [(buffer, buffers[key]) for buffer, key in self._places if key in buffers]
        placed = {buffer: slots[key] for buffer, key in self._places if key in slots}
        sizes = {var: substituted(value, own) for var, value in self._symbols.items()}
        declared = [regions.declared_over(buffer, memory) for buffer, memory in views]

        def function(phases: list[list[Any]]) -> PrimFunc:
            steps = [
                [regions.placed_in(tasks.shared(nest, placed, add), placed) for nest in phase]
                for phase in phases
            ]
            made = regions.function_of(parameters, [*declared, *regions.region(steps)])
            # Substitute sizes everywhere: TVM allocates buffers before the first statement, so no
            # statement could define the variables.
            return made.with_body(nests.substitute(made.body, sizes))

        merged = function(self.phases(target)[0])
        many = self.threads_from(target)
        if many:
            least = math.prod(many.values())
            enough = math.prod(own[each] for each in many) >= least
            phases = [[self._chosen(nest, least, None) for nest in p] for p in self._phases]
            alone = [[self._chosen(nest, 0, least - 1) for nest in p] for p in self.on_one_thread()]
            merged = either(merged, [(enough, function(phases)), (None, function(alone))])
        return Plan(merged, [value.key for value in inputs], callers, workspaces)

    def _chosen(self, nest: Any, least: int, most: int | None) -> Any:
        """Resolve a nest's choices as far as possible, given that the caller's only variable lies
        between `least` and `most`."""
        if len(self.bounds) != 1:
            return nest
        ((variable, (low, high)),) = self.bounds.items()
        low, high = max(low, least), high if most is None else most
        analyzer = extents.analyzer_of({variable: (low, high)})

        def decide(condition: Any) -> bool | None:
            condition = substituted(condition, self._symbols)
            if analyzer.can_prove(condition):
                return True
            return False if analyzer.can_prove(tirx.Not(condition)) else None

        return regions.chosen(nest, decide)


def _like(value: _Value, name: str, own: Mapping[Any, Any]) -> Any:
    shape = [substituted(extent, own) for extent in value.shape]
    return regions.new_buffer(name, shape, value.dtype)


def _size(value: _Value) -> Any:
    """Return the number of elements of a value: an int, or an expression in the caller's
    variables."""
    if extents.is_static(value.shape):
        return math.prod(map(int, value.shape))
    return simplified(math.prod(value.shape))


def place_values(
    values: Sequence[_Value], itemsize: int, bounds: extents.Bounds
) -> tuple[dict[Any, Any], Any]:
    """Return the offset of each value in a workspace, in elements, and the workspace's size."""
    if not all(isinstance(_size(value), int) for value in values):
        return _place_symbolic(values, itemsize, bounds)
    unit = max(1, _CACHE_LINE // itemsize)
    placed: list[tuple[int, int, _Value]] = []  # begin, end
    for value in sorted(values, key=lambda each: -_size(each)):
        extent = -(-_size(value) // unit) * unit
        begin = 0
        for other_begin, other_end, other in sorted(placed, key=lambda each: each[0]):
            together = other.first <= value.last and value.first <= other.last
            if together and begin < other_end and other_begin < begin + extent:
                begin = other_end
        placed.append((begin, begin + extent, value))
    size = max((end for _, end, _ in placed), default=0)
    return {value.key: begin for begin, _, value in placed}, size


@dataclass(frozen=True)
class _Placed:
    """A value between two offsets in a workspace of symbolic sizes.

    `high` and `length` are its end and size if all symbolic sizes are at their largest. `below` has
    the indices of the values, itself included, that are known to end at or before its end.
    """

    value: _Value
    begin: Any
    end: Any
    high: int
    below: frozenset[int]
    length: int = 0


def _place_symbolic(
    values: Sequence[_Value], itemsize: int, bounds: extents.Bounds
) -> tuple[dict[Any, Any], Any]:
    """Place values like `place_values`, but with symbolic sizes.

    A value is placed at the start or right after another value: at the first such position where no
    value that is alive at the same time can overlap it. Positions and values are ordered by the
    offsets and sizes that they have when all symbolic sizes are at their largest.
    """
    unit = max(1, _CACHE_LINE // itemsize)
    most = {v: extents.UNBOUNDED if high is None else high for v, (_, high) in bounds.items()}
    analyzer = extents.analyzer_of(bounds)
    zero = tirx.const(0, "int64")
    placed: list[_Placed] = []

    def number(expr: Any) -> int:
        return int(substituted(expr, most))

    def precedes(one: Any, other: Any) -> bool:
        return bool(analyzer.can_prove(zero + one <= other))

    for value in sorted(values, key=lambda each: -number(_size(each))):
        extent = simplified(
            tirx.floordiv(_size(value) + (unit - 1), tirx.const(unit, "int64")) * unit
        )
        length = number(extent)
        beside = [
            (i, each)
            for i, each in enumerate(placed)
            if each.value.first <= value.last and value.first <= each.value.last
        ]
        start = _Placed(value, zero, zero, 0, frozenset())
        for at in sorted([start, *placed], key=lambda each: each.high):
            begin, end = at.end, simplified(at.end + extent)
            # Proofs are slow, so most cases are settled by numbers or by earlier proofs.
            if all(
                i in at.below
                or (each.high <= at.high and precedes(each.end, begin))
                or (at.high + length <= each.high - each.length and precedes(end, each.begin))
                for i, each in beside
            ):
                below = at.below
                break
        else:  # after all other values
            begin = simplified(sum((e.end - e.begin for e in placed), zero))
            end, below = simplified(begin + extent), frozenset(range(len(placed)))
        placed.append(_Placed(value, begin, end, number(end), below | {len(placed)}, length))
    ends: list[Any] = []
    for end in (each.end for each in sorted(placed, key=lambda each: -each.high)):
        if not any(precedes(end, other) for other in ends):
            ends.append(end)
    size = ends[0] if ends else tirx.const(0, "int64")
    for end in ends[1:]:
        size = tirx.max(size, end)
    return {each.value.key: each.begin for each in placed}, size
