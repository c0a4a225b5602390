"""TIR statements as a Python program that runs on a `Machine`.

The program is text, so that a million accesses take a few seconds: loops become Python loops, and
everything inside a kernel or a parallel loop runs for all its threads at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

import numpy as np

from kernel_lab.trace import fragments, mma
from kernel_lab.trace.errors import NotInterpreted, TraceError
from kernel_lab.trace.expressions import Expressions, Slot, Value, call_name, inverse
from kernel_lab.trace.loops import (
    PARALLEL,
    THREAD_BINDING,
    VECTORIZED,
    constant_extent,
    is_plain,
    thread_extents,
)
from kernel_lab.trace.machine import Machine, Storage, numpy_dtype

# Attributes that control code generation and do not change the result.
SILENT_ATTRIBUTES = (
    "pragma_",
    "double_buffer",
    "async_",
    "storage_alignment",
    "buffer_dim_align",
    "hand_threaded",
    "compute_scope",
    "device_scope",
)
WARP_SCOPES = (*fragments.SCOPES, mma.SCOPE)
WARP_CALLS = {**fragments.CALLS, **mma.CALLS}
AXES = ("z", "y", "x")  # outermost first: x is fastest


class Program(Expressions):
    """The Python program of one PrimFunc: `build` returns it as a function of a Machine."""

    def __init__(self, ignore: tuple[str, ...], follow: bool = False) -> None:
        super().__init__(ignore)
        self.follow = follow  # whether the values of loop variables are recorded
        self.buffers: list[tuple[str, str, str, tuple[int, ...]]] = []  # name, scope, dtype, shape
        self.arguments: list[int] = []  # numbers of the buffers that are the function's arguments
        self.owned: set[int] = set()  # numbers of the buffers that each worker has a copy of
        self.bounded = True  # whether `estimate` covers every loop
        self._prologue = 0  # the position of lines that must run once for the region
        self._region: str | None = None
        self._lanes = False
        self._threads: dict[str, Value] = {}
        self._strides: dict[str, int] = {}  # stride of an axis in a thread's number
        self._extents: dict[str, int] = {}

    def build(self, function: Any) -> Callable[[Machine, list[Storage]], None]:
        """Generate the program. Raises NotInterpreted naming code that is not supported."""
        for parameter in function.params:
            if not hasattr(parameter, "scope"):
                raise NotInterpreted(f"trace: argument {parameter.name} is not a buffer")
            slot = self._new_slot(parameter)
            self.slots[parameter] = slot
            self.arguments.append(slot.buffer)
        self.emit("note = m.log.append")
        for number, slot in enumerate(self.slots.values()):
            self.emit(f"{slot.storage} = arguments[{number}]")
        self._prologue = len(self.lines)
        self.statement(function.body)
        text = "\n".join("    " * depth + line for depth, line in self.lines)
        code = compile(
            f"def program(m, arguments):\n{text}\n", f"<trace of {function}>"[:60], "exec"
        )
        namespace = dict(self.constants)
        exec(code, namespace)  # our own text, made of the names and operators above
        return namespace["program"]

    def _new_slot(self, buffer: Any) -> Slot:
        dtype = str(buffer.dtype)
        for extent in buffer.shape:
            if not hasattr(extent, "value"):
                raise NotInterpreted(f"trace: buffer {buffer.name} has a symbolic size {extent}")
        shape = tuple(int(extent.value) for extent in buffer.shape)
        size = math.prod(shape)
        self.buffers.append((buffer.name, str(buffer.scope()), dtype, shape))
        self.scopes.append(str(buffer.scope()))
        storage = self.fresh(f"B_{buffer.name}")
        return Slot(storage, len(self.buffers) - 1, buffer.name, size, numpy_dtype(dtype))

    def statement(self, node: Any) -> None:
        """Emit a statement."""
        method = getattr(self, f"_{type(node).__name__}", None)
        if method is None or not hasattr(node, "script"):
            raise NotInterpreted(f"trace: statement {type(node).__name__} is not interpreted")
        method(node)

    def _SeqStmt(self, node: Any) -> None:
        for child in node.seq:
            self.statement(child)

    def _block(self, node: Any) -> None:
        before = len(self.lines)
        self.statement(node)
        if len(self.lines) == before:
            self.emit("pass")

    def _Bind(self, node: Any) -> None:
        value = self.expr(node.value)
        name = self.fresh(node.var.name)
        self.emit(f"{name} = {value.code}")
        self.variables[node.var] = Value(name, value.varying)

    def _DeclBuffer(self, node: Any) -> None:
        data = node.data
        source = data.args[0] if getattr(data, "args", None) else data
        slot = self.slot_of(source)
        dtype = str(node.buffer.dtype)
        if numpy_dtype(dtype) != slot.dtype or int(node.buffer.elem_offset.value):
            raise NotInterpreted(
                f"trace: {node.buffer.name} views {slot.name} as another type, which is not"
                " interpreted"
            )
        self.slots[node.buffer] = slot

    def _AllocBuffer(self, node: Any) -> None:
        buffer, scope = node.buffer, str(node.buffer.scope())
        if self._lanes:
            raise NotInterpreted(f"trace: {buffer.name} is allocated inside a vectorised loop")
        if scope not in ("", "global", "local", "shared", "shared.dyn", *WARP_SCOPES):
            raise NotInterpreted(
                f"trace: {buffer.name} has scope {scope!r}; for warps and tensor cores"
                f" only {', '.join(WARP_SCOPES)} are interpreted"
            )
        if buffer in self.slots:
            return
        slot = self.slots[buffer] = self._new_slot(buffer)
        share = {None: "all", "parallel": "thread"}.get(self._region, "thread")
        if self._region == "kernel" and scope.startswith("shared"):
            share = "block"
        elif scope in WARP_SCOPES:
            if self._region != "kernel":
                raise NotInterpreted(f"trace: {buffer.name} has scope {scope!r} outside a kernel")
            share = "warp"
        if share != "all":
            self.owned.add(slot.buffer)
        dtype = self.constant("t", slot.dtype)
        line = f"{slot.storage} = m.allocate({slot.name!r}, {slot.size}, {dtype}, {share!r})"
        # Once per region: an allocation in a loop need not start with new memory each time.
        self.lines.insert(self._prologue, (1 if self._region is None else self._region_depth, line))

    def _AttrStmt(self, node: Any) -> None:
        key = str(node.attr_key)
        if key == "thread_extent":
            self._thread_extent(node)
        elif key == "reduce_scope" and call_name(node.body.value) == "tvm_thread_allreduce":
            self._thread_allreduce(node.node, node.body.value.args)
        elif key.startswith(SILENT_ATTRIBUTES):
            self.statement(node.body)
        else:
            raise NotInterpreted(f"trace: attribute {key} is not interpreted")

    def _thread_allreduce(self, reducer: Any, arguments: Any) -> None:
        """Reduce each thread's value over all threads along the axes in the last arguments."""
        if int(arguments[0].value) != 1:
            raise NotInterpreted(
                "trace: a reduction of several values across threads is not interpreted"
            )
        value, condition = self.named(self.expr(arguments[1])), self.expr(arguments[2])
        if condition.code != "True":
            zero = self.expr(reducer.identity_element[0])
            value = self.named(
                Value(f"np.where({condition.code}, {value.code}, {zero.code})", True)
            )
        self.variables[reducer.lhs[0]] = Value("left", True)
        self.variables[reducer.rhs[0]] = Value("right", True)
        combine = f"lambda left, right: {self.expr(reducer.result[0]).code}"
        axes = [self.variables[axis] for axis in arguments[4:]]
        strides = [self._strides[tag] for tag, axis in self._threads.items() if axis in axes]
        extents = [self._extents[tag] for tag, axis in self._threads.items() if axis in axes]
        name = self.fresh("reduced")
        self.emit(f"{name} = m.reduce({value.code}, {strides}, {extents}, {combine})")
        slot, index = self.slot_of(arguments[3].source), self._element(arguments[3].indices)
        site = self.site(slot, True, arguments[3].indices)
        self.emit(f"m.store({slot.storage}, {site}, {index.code}, {name}, {self.mask})")

    def _thread_extent(self, node: Any) -> None:
        tag = str(node.node.thread_tag)
        if self._region == "kernel":
            self.variables[node.node.var] = self._threads[tag]
            self.statement(node.body)
            return
        if self._region is not None:
            raise NotInterpreted(f"trace: {tag} inside a parallel loop is not interpreted")
        extents = thread_extents(node)
        blocks = [extents.get(f"blockIdx.{axis}", 1) for axis in AXES]
        threads = [extents.get(f"threadIdx.{axis}", 1) for axis in AXES]
        block_count, thread_count = int(np.prod(blocks)), int(np.prod(threads))
        numbers = self._enter("kernel", block_count, thread_count)
        places = [f"blockIdx.{axis}" for axis in AXES] + [f"threadIdx.{axis}" for axis in AXES]
        stride = block_count * thread_count
        self._threads = {}
        for place, extent in zip(places, blocks + threads, strict=True):
            stride //= extent
            if place in extents:
                self._strides[place], self._extents[place] = stride, extent
                name = self.fresh(place)
                self.emit(f"{name} = {numbers} // {stride} % {extent}")
                self._threads[place] = Value(name, True)
        self._prologue = len(self.lines)
        self.variables[node.node.var] = self._threads[tag]
        self.statement(node.body)
        self._leave(block_count * thread_count)

    def _enter(self, kind: str, blocks: int, threads: int) -> str:
        name = self.fresh("threads")
        self.emit(f"{name} = m.enter({kind!r}, {blocks}, {threads})")
        self._region, self._region_depth = kind, self.depth
        self.vector = True
        self.times *= blocks * threads
        self._outer_prologue, self._prologue = self._prologue, len(self.lines)
        return name

    def _leave(self, count: int) -> None:
        self.emit("m.leave()")
        self.times //= count
        self._prologue, self._region, self.vector = self._outer_prologue, None, False

    def _For(self, node: Any) -> None:
        kind = int(node.kind)
        if node.step is not None and getattr(node.step, "value", None) != 1:
            raise NotInterpreted(f"trace: loop {node.loop_var.name} has a step of {node.step}")
        if kind == THREAD_BINDING:
            raise NotInterpreted(f"trace: loop {node.loop_var.name} was left bound to a thread")
        if kind == VECTORIZED:
            self._vectorized(node)
        elif kind == PARALLEL and self._region is None and not self._lanes:
            self._parallel(node)
        elif kind == PARALLEL:
            raise NotInterpreted(
                "trace: TVM has no parallel loop inside another one or a GPU kernel"
            )
        else:
            self._serial(node)

    def _parallel(self, node: Any) -> None:
        extent = constant_extent(node)
        numbers = self._enter("parallel", extent, 1)
        first = self.expr(node.min)
        name = self.fresh(node.loop_var.name)
        self.emit(f"{name} = {numbers} + {first.code}")
        self.variables[node.loop_var] = Value(name, True)
        self._prologue = len(self.lines)
        if self.follow:
            self._open_nest([node])
            self.parallel_nests.add(len(self.nests) - 1)
        self.statement(node.body)
        if self.follow:
            self.open_nests.pop()
        self._leave(extent)

    def _open_nest(self, loops: Iterable[Any]) -> None:
        """Open a nest of these loops; new sites belong to it until it is popped."""
        self.nests.append(tuple((loop.loop_var.name, constant_extent(loop)) for loop in loops))
        self.open_nests.append(len(self.nests) - 1)

    def _vectorized(self, node: Any) -> None:
        if self._lanes:
            raise NotInterpreted(f"trace: vectorised loop {node.loop_var.name} is inside another")
        extent = constant_extent(node)
        lanes = self.constant("lanes", np.arange(extent)[None, :])
        first = self.expr(node.min)
        code = lanes if first.code == "0" else f"({first.code} + {lanes})"
        self.variables[node.loop_var] = self.named(Value(code, True), node.loop_var.name)
        before, self.vector, self._lanes = self.vector, True, True
        self.times *= extent
        self.statement(node.body)
        self.times //= extent
        self.vector, self._lanes = before, False

    def _serial(self, node: Any) -> None:
        # Perfectly nested loops become one: Python nests only 20 deep.
        nest = [node]
        while is_plain(nest[-1]) and is_plain(nest[-1].body):
            nest.append(nest[-1].body)
        if not is_plain(node):
            self._dynamic(node)
            return
        names, ranges, count = [], [], 1
        for loop in nest:
            first, extent = int(loop.min.value), constant_extent(loop)
            if extent == 1:
                self.variables[loop.loop_var] = Value(str(first))
                continue
            name = self.fresh(loop.loop_var.name)
            self.variables[loop.loop_var] = Value(name)
            names.append(name)
            ranges.append(f"range({first}, {first + extent})")
            count *= extent
        if not names:
            self.statement(nest[-1].body)
            return
        if len(names) == 1:
            self.emit(f"for {names[0]} in {ranges[0]}:")
        else:
            self.constants["product"] = product
            self.emit(f"for {', '.join(names)} in product({', '.join(ranges)}):")
        self.times *= count
        self.depth += 1
        if self.follow:
            self._open_nest(loop for loop in nest if constant_extent(loop) != 1)
            self.emit(f"m.turn({len(self.nests) - 1}, ({', '.join(names)},))")
        self._block(nest[-1].body)
        if self.follow:
            self.open_nests.pop()
        self.depth -= 1
        self.times //= count

    def _dynamic(self, node: Any) -> None:
        """Emit a loop with computed bounds; if these differ between threads, it runs as on a
        GPU."""
        self.bounded = False
        first, extent = self.named(self.expr(node.min)), self.named(self.expr(node.extent))
        count = f"int({extent.code}.max())" if extent.varying else extent.code
        step, name, before = self.fresh("step"), self.fresh(node.loop_var.name), self.mask
        self.emit(f"for {step} in range({count}):")
        self.depth += 1
        self.emit("m.guard()")
        self.emit(f"{name} = {first.code} + {step}")
        self.variables[node.loop_var] = Value(name, first.varying)
        if extent.varying:
            self.begin_where(Value(f"({step} < {extent.code})", True))
        self._block(node.body)
        self.depth -= 2 if extent.varying else 1
        self.mask = before

    def _While(self, node: Any) -> None:
        self.bounded = False
        before = self.mask
        self.emit("while True:")
        self.depth += 1
        self.emit("m.guard()")
        condition = self.named(self.expr(node.condition))
        self.begin_where(condition)
        self._block(node.body)
        self.depth -= 1
        self.emit("else:")
        self.lines.append((self.depth + 1, "break"))
        self.depth -= 1
        self.mask = before

    def _IfThenElse(self, node: Any) -> None:
        condition, before = self.named(self.expr(node.condition), "condition"), self.mask
        cases = [(condition, node.then_case)]
        if node.else_case is not None:
            cases.append((inverse(condition), node.else_case))
        for holds, body in cases:
            self.begin_where(holds)
            self._block(body)
            self.depth -= 1
            self.mask = before

    def _BufferStore(self, node: Any) -> None:
        slot = self.slot_of(node.buffer)
        value = self.expr(node.value)
        index = self._element(node.indices)
        site = self.site(slot, True, node.indices)
        if self.vector or index.varying or value.varying:
            self.emit(f"m.store({slot.storage}, {site}, {index.code}, {value.code}, {self.mask})")
            return
        index = self._checked(slot, site, index)
        if slot.dtype.kind in "iu":
            value = Value(f"wrapped({value.code}, {self.constant('t', slot.dtype)})")
        self.emit(f"{slot.storage}.data[{index.code}] = {value.code}")

    def _Evaluate(self, node: Any) -> None:
        name = call_name(node.value) if hasattr(node.value, "op") else None
        if name in ("tvm_storage_sync", "cuda.cta_sync"):
            self.emit("m.barrier()")
        elif name in WARP_CALLS:
            WARP_CALLS[name](self, name, node.value.args)
        elif name == "ret" or type(node.value).__name__ == "IntImm":
            pass
        else:
            self.expr(node.value)

    def _AssertStmt(self, node: Any) -> None:
        condition = self.expr(node.condition)
        self.constants["TraceError"] = TraceError
        holds = f"{condition.code}.all()" if condition.varying else condition.code
        self.emit(
            f"if not {holds}: raise TraceError({f'trace: assertion failed: {node.condition}'!r})"
        )
