"""Several kernels as the steps of one function: phases between barriers, and a workspace.

A step is one loop nest of a kernel. Steps are assigned to phases in order. A new phase begins if a
step accesses what another step wrote in the current phase, or writes what another one accessed
there. Two steps on one thread need no barrier between them.

A buffer that nothing outside reads is a slot of a workspace, one workspace per dtype. Slots are
placed largest first at the lowest offset that is free during their lifetime (Pisarchyk and Lee,
"Efficient memory management for deep neural net inference", 2020, greedy by size). Lifetimes are
counted in phases: within one phase, a thread may be ahead of another.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from needle_tvm._tvm.names import PrimFunc, Target
from needle_tvm.kernels.blocks import item_bytes, vector_registers
from needle_tvm.tir import regions

_CACHE_LINE = 64  # bytes: no two slots share one

# In instructions, at about four a nanosecond: the measured costs of waking the pool and of one
# barrier (1 us and 0.5 us on two cores of a Zen 4).
_WAKING, _WAITING = 4000, 2000


@dataclass(frozen=True)
class Kernel:
    """A call of a scheduled function, taken apart. Buffers are the lowered function's own."""

    arguments: tuple[Any, ...]  # of the call, without the result
    parameters: tuple[Any, ...]  # a buffer for each argument, and one for the result
    scratch: tuple[Any, ...]  # buffers that one nest writes and another reads
    views: dict[Any, Any]  # buffer -> the parameter or scratch buffer whose memory it is
    nests: tuple[Any, ...]

    @classmethod
    def of(cls, function: PrimFunc, arguments: Sequence[Any], target: Target) -> Kernel | None:
        """Take a call apart; None if the function is not a plain list of loop nests over buffers of
        static shape."""
        lowered, statements = regions.lowered_statements(function, target)
        views: dict[Any, Any] = {}
        scratch: list[Any] = []
        nests: list[Any] = []
        owners = set(lowered.params)
        if all(regions.is_serial(each) for each in statements):  # one step, its scratch its own
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
            elif regions.is_parallel(statement) or regions.is_serial_loop(statement):
                nests.append(statement)
            else:
                return None
        sized = all(regions.size_of(buffer) is not None for buffer in (*owners, *views))
        known = all(regions.buffers_in(nest) is not None for nest in nests)
        if not (nests and sized and known and len(lowered.params) == len(arguments) + 1):
            return None
        return cls(tuple(arguments), tuple(lowered.params), tuple(scratch), views, tuple(nests))


@dataclass
class _Value:
    """A value in memory: an argument, a result, or scratch of one kernel."""

    key: Hashable
    buffer: Any  # the first buffer that stands for it
    first: int = 0  # phases in which it is alive
    last: int = 0
    written: bool = False


@dataclass
class Plan:
    """A merged function. It takes `inputs`, then the requested results, then the workspaces."""

    function: PrimFunc
    inputs: list[Any]
    workspaces: list[tuple[str, int]]  # dtype and number of elements


@dataclass
class Region:
    """Collects the kernels of one region."""

    _values: dict[Any, _Value] = field(default_factory=dict)
    _places: list[tuple[Any, Any]] = field(default_factory=list)  # (buffer, key of its value)
    _phases: list[list[Any]] = field(default_factory=lambda: [[]])
    _touched: dict[Any, bool] = field(default_factory=dict)  # in this phase: by serial nests alone?
    _written: dict[Any, bool] = field(default_factory=dict)

    def add(self, kernel: Kernel, operands: Sequence[Any]) -> None:
        """Add a kernel that reads all `operands` but the last, and writes the last.

        An operand is any key that names a value: equal operands are the same memory.
        """
        owners = dict(zip(kernel.parameters, operands, strict=True))
        owners |= {buffer: buffer for buffer in kernel.scratch}
        for buffer, key in owners.items():
            self._values.setdefault(key, _Value(key, buffer, first=-1))
        keys = owners | {view: owners[owner] for view, owner in kernel.views.items()}
        direct: set[Any] = set()
        for nest in kernel.nests:
            touched, written = regions.buffers_in(nest) or (set(), set())
            direct |= touched
            self._step(
                nest,
                {keys[buffer] for buffer in touched if buffer in keys},
                {keys[buffer] for buffer in written if buffer in keys},
            )
        self._places += [(buffer, key) for buffer, key in keys.items() if buffer in direct]

    def _step(self, nest: Any, touched: set[Any], written: set[Any]) -> None:
        serial = not regions.is_parallel(nest)
        waits = any(
            key in before and not (serial and before[key])
            for keys, before in ((touched, self._written), (written, self._touched))
            for key in keys
        )
        if waits:
            self._phases.append([])
            self._touched, self._written = {}, {}
        for keys, before in ((touched, self._touched), (written, self._written)):
            for key in keys:
                before[key] = serial and before.get(key, True)
        self._phases[-1].append(nest)
        for key in touched:
            value = self._values[key]
            value.last = len(self._phases) - 1
            value.first = value.last if value.first < 0 else value.first
            value.written |= key in written

    def phases(self, target: Target) -> list[list[Any]]:
        """The steps by phase, or all of them on one thread if that is faster."""
        threads = int(target.attrs["num-cores"])
        lanes = vector_registers(target)[1] // 4
        steps = [nest for phase in self._phases for nest in phase]
        shared = [nest for nest in steps if regions.is_parallel(nest)]
        saved = sum(regions.instructions(nest, lanes) for nest in shared) * (threads - 1) // threads
        if saved > _WAKING + _WAITING * (len(self._phases) - 1):
            return self._phases
        return [[regions.serial(nest) for nest in steps]]

    def takes_threads_back(self, target: Target) -> bool:
        """Whether `phases` runs steps on one thread that a rule has parallelised."""
        return self.phases(target) != self._phases

    def plan(self, results: Sequence[Any], target: Target) -> Plan:
        """The merged function, whose results are those of these keys."""
        inputs = [value for value in self._values.values() if not value.written]
        outside = [*inputs, *(self._values[key] for key in results)]
        buffers = {value.key: _like(value.buffer, f"p{n}") for n, value in enumerate(outside)}
        parameters = list(buffers.values())
        inner = [value for value in self._values.values() if value.key not in buffers]
        slots: dict[Any, tuple[Any, int]] = {}
        workspaces = []
        for dtype in sorted({_size(value)[1] for value in inner}):
            values = [value for value in inner if _size(value)[1] == dtype]
            offsets, size = _place(values, item_bytes(dtype))
            workspaces.append((dtype, size))
            workspace = regions.new_buffer(f"workspace_{dtype}", [size], dtype)
            parameters.append(workspace)
            slots |= {key: (workspace, offset) for key, offset in offsets.items()}
        views = [(buffer, buffers[key]) for buffer, key in self._places if key in buffers]
        placed = {buffer: slots[key] for buffer, key in self._places if key in slots}
        declared = [regions.declared_over(buffer, memory) for buffer, memory in views]
        phases = [
            [regions.placed_in(nest, placed) for nest in phase] for phase in self.phases(target)
        ]
        function = regions.region_function(parameters, declared, phases)
        return Plan(function, [value.key for value in inputs], workspaces)


def _like(buffer: Any, name: str) -> Any:
    return regions.new_buffer(name, list(buffer.shape), str(buffer.dtype))


def _size(value: _Value) -> tuple[int, str]:
    size = regions.size_of(value.buffer)
    assert size is not None  # `Kernel.of` takes no other
    return size


def _place(values: Sequence[_Value], itemsize: int) -> tuple[dict[Any, int], int]:
    """The offset of each value in a workspace, in elements, and the workspace's size."""
    unit = max(1, _CACHE_LINE // itemsize)
    placed: list[tuple[int, int, _Value]] = []  # begin, end
    for value in sorted(values, key=lambda each: -_size(each)[0]):
        extent = -(-_size(value)[0] // unit) * unit
        begin = 0
        for other_begin, other_end, other in sorted(placed, key=lambda each: each[0]):
            together = other.first <= value.last and value.first <= other.last
            if together and begin < other_end and other_begin < begin + extent:
                begin = other_end
        placed.append((begin, begin + extent, value))
    size = max((end for _, end, _ in placed), default=0)
    return {value.key: begin for begin, _, value in placed}, size
