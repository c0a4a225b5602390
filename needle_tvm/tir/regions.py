"""Analyses and builds statements of lowered functions: loop nests, buffers, parallel regions.

A parallel region consists of two pragmas of TVM's CPU code generator (`codegen_cpu.cc`). A launch
point wakes the thread pool, and parallel loops inside are distributed over its threads. After a
statement with a barrier, all threads wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from needle_tvm._tvm.names import PrimFunc, Target, s_tir, tirx, tvm, tvm_ffi
from needle_tvm.tir import nests, tasks
from needle_tvm.tir.extents import analyzer_of, substituted
from needle_tvm.tir.functions import linear_in, lowered_loops, module_of, variables_of

_LAUNCH, _BARRIER = "pragma_parallel_launch_point", "pragma_parallel_barrier_when_finish"
_LOOPS = (tirx.ForKind.SERIAL, tirx.ForKind.PARALLEL)
# A body with at least this many instructions becomes a function: the call adds less than 1 %.
_TASK = 1000
_FUNCTION = 12  # instructions of exp and the like
_POINTERS = tuple(tvm.ir.Op.get(f"tirx.{name}") for name in ("buffer_data", "address_of"))
_FALLIBLE = tuple(tvm.ir.Op.get(f"tirx.{name}") for name in ("tvm_call_packed", "tvm_call_cpacked"))


def lowered(function: PrimFunc, target: Target) -> PrimFunc:
    """Return a scheduled function lowered to loops over flat buffers."""
    with target:
        module = module_of(function.with_attr("global_symbol", "main"))
        return lowered_loops(module, select_branches=False)["main"]


def from_the_start(function: PrimFunc) -> PrimFunc:
    """Change a lowered function to expect its arguments at the start of their memory.

    In a function with statements that an op wrote itself, arguments may have any offset. A caller
    that places values in memory itself needs functions without offsets."""
    values: dict[Any, Any] = {}
    for buffer in filter(tirx.is_buffer_var, function.params):
        if isinstance(buffer.elem_offset, tirx.Var):
            values[buffer.elem_offset] = tirx.const(0, "int64")
            values[buffer] = new_buffer(buffer.name, buffer.shape, buffer.dtype)
    if not values:
        return function
    parameters = [values.get(each, each) for each in function.params]
    body = nests.substitute(function.body, values)
    return PrimFunc(parameters, body, function.ret_type, function.attrs)


def copied(function: PrimFunc) -> tuple[PrimFunc, list[Any]]:
    """Return a copy of a lowered function, and the statements of the copy's body.

    All its variables are new, so that one function can contain several copies.
    """
    copy = s_tir.renew_defs(function)
    body = copy.body
    return copy, list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]


def calling_tasks(
    function: PrimFunc,
    lowered: PrimFunc,
    symbolic: bool,
    lanes: int,
    add: Callable[[PrimFunc], Any],
) -> PrimFunc:
    """Change a scheduled function to call the same body functions (`tasks.shared`) as a parallel
    region that contains its nests. `lowered` is the same function after lowering."""
    copy, statements = copied(lowered)
    steps = [tasks.shared(each, {}, add) for each in bodies_apart(statements, symbolic, lanes)]
    root = s_tir.SBlockRealize([], True, s_tir.SBlock([], [], [], "root", in_sequence(steps)))
    return PrimFunc(copy.params, root, function.ret_type, function.attrs)


def is_view(statement: Any) -> bool:
    """Return whether a statement declares a buffer over existing memory."""
    return isinstance(statement, tirx.DeclBuffer)


def is_shared_allocation(statement: Any) -> bool:
    """Return whether a statement allocates a buffer that is not local (kept in registers)."""
    return isinstance(statement, tirx.AllocBuffer) and statement.buffer.scope() != "local"


def is_parallel(statement: Any) -> bool:
    """Return whether a statement is a parallel loop with no parallel loop inside, or a choice
    between such loops."""
    if isinstance(statement, tirx.IfThenElse):
        return all(map(is_parallel, _branches(statement)))
    if not isinstance(statement, tirx.For) or statement.kind != tirx.ForKind.PARALLEL:
        return False
    return is_serial(statement.body)


def _branches(choice: Any) -> list[Any]:
    return [each for each in (choice.then_case, choice.else_case) if each is not None]


def is_serial(statement: Any) -> bool:
    """Return whether a statement has no parallel loop."""
    loops = _found(statement, tirx.For)
    return all(loop.kind != tirx.ForKind.PARALLEL for loop in loops)


def is_serial_loop(statement: Any) -> bool:
    return isinstance(statement, (tirx.For, tirx.IfThenElse)) and is_serial(statement)


def choice_of_nests(statement: Any) -> Any:
    """Mark the bodies of a loop nest, or of an if that chooses between loop nests by size, with
    `tasks.apart`, and make serial nests parallel loops that run on one thread. Return None for any
    other statement."""
    if isinstance(statement, tirx.IfThenElse):
        branches = [choice_of_nests(each) for each in _branches(statement)]
        if None in branches:
            return None
        return _choice(statement.condition, branches)
    if is_parallel(statement):
        body = tasks.apart(statement.body)
        return tirx.For(statement.loop_var, statement.min, statement.extent, statement.kind, body)
    return _on_one_thread(tasks.apart(statement)) if is_serial_loop(statement) else None


def bodies_apart(statements: Sequence[Any], symbolic: bool, lanes: int | None) -> list[Any]:
    """Return the statements with the bodies of nests marked by `tasks.apart`. If extents are
    symbolic, mark all bodies. Otherwise mark only bodies so long that a call costs almost nothing,
    or none if `lanes` is None."""
    if symbolic:
        return [choice_of_nests(each) or each for each in statements]
    return list(statements) if lanes is None else [_body_apart(each, lanes) for each in statements]


def _body_apart(statement: Any, lanes: int) -> Any:
    """Return a loop with its body marked by `tasks.apart` if the body's buffers are known and a
    call costs almost nothing beside it; return other statements unchanged."""
    if not isinstance(statement, tirx.For) or statement.kind not in _LOOPS:
        return statement
    if buffers_in(statement) is None or instructions(statement.body, lanes) < _TASK:
        return statement
    body = tasks.apart(statement.body)
    return tirx.For(statement.loop_var, statement.min, statement.extent, statement.kind, body)


def in_sequence(statements: Sequence[Any]) -> Any:
    return tirx.SeqStmt(list(statements)) if len(statements) > 1 else statements[0]


def serial(nest: Any) -> Any:
    """Return a nest as a serial loop, to run on one thread."""
    if not is_parallel(nest):
        return nest
    if isinstance(nest, tirx.IfThenElse):
        return _choice(nest.condition, list(map(serial, _branches(nest))))
    return tirx.For(nest.loop_var, nest.min, nest.extent, tirx.ForKind.SERIAL, nest.body)


def all_serial(statement: Any) -> Any:
    """Return a statement with all its parallel loops made serial."""

    def serial_loop(node: Any) -> Any:
        if node.kind != tirx.ForKind.PARALLEL:
            return node
        return tirx.For(node.loop_var, node.min, node.extent, tirx.ForKind.SERIAL, node.body)

    return nests.map_nodes(statement, tirx.For, serial_loop)


def joined(first: Any, second: Any, key_of: Callable[[Any], Any]) -> Any:
    """Fuse two parallel loops: each iteration of the result runs that iteration of `first` and then
    of `second`. Return None if different iterations of the two might access the same memory.

    Several buffers may lie in the memory of one value. `key_of(buffer)` returns the value's key if
    one nest writes the value and the other accesses it, else None. In iteration i, both loops may
    access only elements [i * n, (i + 1) * n) of such a value, with the same n.
    """
    if not all(isinstance(nest, tirx.For) and is_parallel(nest) for nest in (first, second)):
        return None
    if not (nests.same(first.extent, second.extent) and nests.same(first.min, second.min)):
        return None
    parts: dict[Any, int] = {}
    for nest in (first, second):
        bounds = {
            loop.loop_var: (int(loop.min), int(loop.min) + int(loop.extent) - 1)
            for loop in _found(nest, tirx.For)
            if isinstance(loop.min, tirx.IntImm) and isinstance(loop.extent, tirx.IntImm)
        }
        accesses = [(each.source, each.indices) for each in _found(nest, tvm.ir.expr.TensorLoad)]
        accesses += [(each.buffer, each.indices) for each in _found(nest, tirx.BufferStore)]
        for buffer, indices in accesses:
            key = key_of(buffer)
            if key is None:
                continue
            size = _part(indices, nest.loop_var, bounds)
            if size is None or parts.setdefault(key, size) != size:
                return None
    body = nests.substitute(second.body, {second.loop_var: first.loop_var})
    return tirx.For(
        first.loop_var, first.min, first.extent, first.kind, tirx.SeqStmt([first.body, body])
    )


def _part(
    indices: Sequence[Any], variable: Any, bounds: Mapping[Any, tuple[int, int]]
) -> int | None:
    """Return the n for which an index lies in [variable * n, (variable + 1) * n); None if no n is
    known."""
    if len(indices) != 1:
        return None
    used = variables_of(indices[0])
    if not used <= set(bounds):
        return None
    terms = linear_in(indices[0], [variable])
    if terms is None:
        return None
    size, rest = terms
    found = analyzer_of({each: bounds[each] for each in used}).const_int_bound(rest)
    return size if found.min_value >= 0 and found.max_value < size else None


def chosen(nest: Any, decide: Callable[[Any], bool | None]) -> Any:
    """Return a nest without the branches that `decide(condition)` rules out. `decide` returns None
    for a condition that may or may not hold."""
    if not isinstance(nest, tirx.IfThenElse):
        return nest
    decided = decide(nest.condition)
    if decided is not None:
        return chosen(nest.then_case if decided else nest.else_case, decide)
    return _choice(nest.condition, [chosen(each, decide) for each in _branches(nest)])


def _choice(condition: Any, branches: Sequence[Any]) -> Any:
    """Return the if statement with one or two branches; the inverse of `_branches`."""
    first, *others = branches
    return tirx.IfThenElse(condition, first, others[0] if others else None)


def instructions(statement: Any, lanes: int, sizes: Mapping[Any, int] | None = None) -> int:
    """Estimate a statement's instructions: its loads, stores and function calls.

    A vectorised loop counts once for every `lanes` iterations; a function such as exp counts as a
    dozen instructions. `sizes` are the values of symbolic extents; they decide choices by size. A
    loop of unknown extent counts once, and so do both branches of any other condition.
    """
    count, pending = 0, [(statement, 1)]
    while pending:
        item, times = pending.pop()
        if isinstance(item, tirx.For):
            extent = _known(item.extent, sizes)
            extent = 1 if extent is None else extent
            if item.kind == tirx.ForKind.VECTORIZED:
                extent = -(-extent // lanes)
            pending.append((item.body, times * extent))
        elif isinstance(item, tirx.IfThenElse) and _known(item.condition, sizes) is not None:
            case = item.then_case if _known(item.condition, sizes) else item.else_case
            pending += [(case, times)] if case is not None else []
        elif isinstance(item, tirx.SeqStmt):
            pending += [(each, times) for each in item.seq]
        elif isinstance(item, tirx.IfThenElse):
            pending += [(each, times) for each in (item.then_case, item.else_case) if each]
        elif isinstance(item, tirx.AttrStmt):
            pending.append((item.body, times))
        elif isinstance(item, tirx.BufferStore):
            calls = len(_found(item.value, tvm.ir.expr.Call))
            loads = len(_found(item.value, tvm.ir.expr.TensorLoad))
            count += times * (1 + loads + _FUNCTION * calls)
    return count


def buffers_in(statement: Any) -> tuple[set[Any], set[Any]] | None:
    """Return the buffers that a statement accesses, and the buffers that it writes.

    Return None if it takes a buffer's address, which makes accesses unknown, or if it may fail: the
    other threads would then wait forever.
    """
    calls = _found(statement, tvm.ir.expr.Call)
    if any(call.op in _POINTERS for call in calls) or may_fail(statement):
        return None
    written = {store.buffer for store in _found(statement, tirx.BufferStore)}
    variables = _found(statement, tvm.ir.Var)
    return {each for each in variables if tirx.is_buffer_var(each)} | written, written


def may_fail(statement: Any) -> bool:
    """Return whether a statement may end with an error."""
    calls = _found(statement, tvm.ir.expr.Call)
    return any(call.op in _FALLIBLE for call in calls) or bool(_found(statement, tirx.AssertStmt))


def memory_of(view: Any) -> Any:
    """Return the buffer that provides a declared view's memory; None for any other statement."""
    data = view.data
    if isinstance(data, tvm.ir.expr.Call) and data.op == _POINTERS[0]:
        return data.args[0]
    return None


def _known(expr: Any, sizes: Mapping[Any, int] | None) -> int | None:
    """Return the value of an extent, or of a condition on symbolic extents; None if it is
    unknown."""
    value = substituted(expr, sizes or {})
    return int(value) if isinstance(value, tirx.IntImm) else None


def is_sized(buffer: Any, symbols: Collection[Any]) -> bool:
    """Return whether a buffer's shape depends only on `symbols`, and its first element is at the
    start of its memory. Buffers of statements that an op wrote itself may have an offset."""
    if not isinstance(buffer.elem_offset, (int, tirx.IntImm, type(None))):
        return False
    extents = [each for each in buffer.shape if not isinstance(each, int)]
    return all(variables_of(extent) <= set(symbols) for extent in extents)


def new_buffer(name: str, shape: Sequence[Any], dtype: str) -> Any:
    return tirx.decl_buffer(list(shape), dtype, name, layout=None)


def declared_over(buffer: Any, memory: Any) -> Any:
    """Return a statement that makes `buffer` a view of all of `memory`, which has its dtype."""
    return tirx.DeclBuffer(buffer, data=tirx.buffer_data(memory))


def placed_in(nest: Any, places: Mapping[Any, tuple[Any, Any]]) -> Any:
    """Return a nest that accesses parts of larger buffers instead of the buffers in `places`. All
    buffers have one axis. `places` maps a buffer to the larger buffer and to the index in it of the
    part's first element.

    Loads and stores access the larger buffer directly. If a view were declared over an address
    inside it, TVM's code generator would treat the view as separate memory, and LLVM could reorder
    accesses to parts that overlap.
    """

    def load(node: Any) -> Any:
        if node.source not in places:
            return node
        memory, offset = places[node.source]
        (index,) = node.indices
        return memory[index + offset]

    def store(node: Any) -> Any:
        if node.buffer not in places:
            return node
        memory, offset = places[node.buffer]
        (index,) = node.indices
        return tirx.BufferStore(memory, node.value, [index + offset])

    nest = tvm_ffi.structural_map(nest, (tvm.ir.expr.TensorLoad, load))
    return tvm_ffi.structural_map(nest, (tirx.BufferStore, store))


def stored_twice(nest: Any, buffer: Any, other: Any) -> Any:
    """Change a nest so that it also stores to `other` everything that it stores to `buffer`. Return
    None if it reads `buffer`, for example because it accumulates a sum there."""
    if any(load.source.same_as(buffer) for load in _found(nest, tvm.ir.expr.TensorLoad)):
        return None

    def store(node: Any) -> Any:
        if not node.buffer.same_as(buffer):
            return node
        again = tirx.BufferStore(other, buffer[tuple(node.indices)], list(node.indices))
        return tirx.SeqStmt([node, again])

    return tvm_ffi.structural_map(nest, (tirx.BufferStore, store))


def function_of(parameters: Sequence[Any], statements: Sequence[Any]) -> PrimFunc:
    """Return a function made of statements, in the form of TVM's scheduled functions."""
    # TVM's graph passes look into functions, and expect the root block that every scheduled
    # function has.
    body = in_sequence(statements) if statements else tirx.Evaluate(0)
    root = s_tir.SBlockRealize([], True, s_tir.SBlock([], [], [], "root", body))
    function = PrimFunc(list(parameters), root)
    return function.with_attrs({"tirx.noalias": True, "tirx.is_scheduled": True, "s_tir": True})


def region(phases: Sequence[Sequence[Any]]) -> list[Any]:
    """Return the statements of one parallel region, with a barrier between phases.

    A phase is a list of nests. A nest that is not parallel runs on one thread. Leading phases with
    only such nests run before the other threads wake; trailing ones run after those have finished.
    """
    shared = [n for n, phase in enumerate(phases) if any(is_parallel(nest) for nest in phase)]
    first, end = (shared[0], shared[-1] + 1) if shared else (len(phases), len(phases))
    body: list[Any] = []
    for phase in phases[:first]:
        body += phase
    if shared:
        steps = [
            _phase(phase, waits=number + 1 < end)
            for number, phase in enumerate(phases[:end])
            if number >= first
        ]
        body.append(_pragma(_LAUNCH, in_sequence(steps)))
    for phase in phases[end:]:
        body += phase
    return body


def steps_of(phases: Sequence[Sequence[Any]], several: bool) -> list[Any]:
    """Return the statements of one step of a loop. With `several`, threads wait for each other
    after each phase."""
    return [_phase(p, True) if several else in_sequence(list(p)) for p in phases]


def loop(variable: Any, length: Any, steps: Sequence[Any], several: bool) -> list[Any]:
    """Return a loop that repeats `steps`, which come from `steps_of`; with `several`, it is one
    parallel region."""
    if not steps:
        return []
    zero = tirx.const(0, "int64")
    whole = tirx.For(variable, zero, length, tirx.ForKind.SERIAL, in_sequence(steps))
    return [_pragma(_LAUNCH, whole) if several else whole]


def _phase(nests: Sequence[Any], waits: bool) -> Any:
    together = in_sequence([nest if is_parallel(nest) else _on_one_thread(nest) for nest in nests])
    return _pragma(_BARRIER, together) if waits else together  # a region's end waits anyway


def _on_one_thread(nest: Any) -> Any:
    # The loop has a second iteration, which does nothing: passes would remove a loop of one
    # iteration, and then every thread would run the nest.
    turn = tirx.Var("turn", "int32")
    return tirx.For(turn, 0, 2, tirx.ForKind.PARALLEL, tirx.IfThenElse(turn == 0, nest, None))


def _pragma(name: str, body: Any) -> Any:
    return tirx.AttrStmt(tirx.IntImm("int32", 0), name, tirx.IntImm("int32", 1), body)


def _found(root: Any, kind: type) -> list[Any]:
    found: list[Any] = []
    tvm_ffi.structural_walk(root, (kind, found.append), order="post")
    return found
