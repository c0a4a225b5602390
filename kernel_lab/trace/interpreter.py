"""`trace`: run a scheduled kernel in Python and record every load and store.

The kernel is lowered by TVM's own passes to loops over flat buffers, turned into a Python program
(statements.py, expressions.py) and run on NumPy memory (machine.py). So its results can be compared
with NumPy's, like those of the compiled kernel.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kernel_lab.errors import LabUsageError
from kernel_lab.trace.errors import NotLowered, TraceTooLarge
from kernel_lab.trace.events import BufferInfo, LoopValues, Region, Trace
from kernel_lab.trace.expressions import SITE_BITS
from kernel_lab.trace.machine import Machine, Storage, filled
from kernel_lab.trace.statements import Program

LIMIT = 1_000_000
ROOM = 4  # a run stops at this multiple of the limit
ALIGNMENT = 256  # bytes; of buffers in the trace's address space


def trace(
    func_or_module: Any,
    inputs: Sequence[Any] | Mapping[str, Any] = (),
    *,
    cores: int = 2,
    limit: int = LIMIT,
    ignore: Sequence[str] = (),
    follow: bool = False,
) -> Trace:
    """Run a scheduled kernel and return its accesses in execution order.

    `func_or_module` is a PrimFunc, or a module holding one; it may have blocks (as a schedule
    leaves it) or be lowered already. `inputs` are arrays for its first arguments, or a mapping from
    names to arrays; other arguments start as NaN (integers as 0). `cores` is the number of workers
    that parallel CPU loops are assigned to. Accesses to memory of the scopes in `ignore` ("local")
    are executed but not recorded. With `follow`, the trace records the values of the loops'
    variables.

    Raises TraceTooLarge if the kernel could make more than `limit` accesses, NotInterpreted for
    unsupported code (tensor-core instructions that fragments.py and mma.py do not have, calls to
    other functions), NotLowered if TVM itself rejects the schedule, TraceError if the kernel reads
    or writes outside a buffer, LabUsageError for inputs that do not fit.
    """
    if cores < 1:
        raise LabUsageError(f"trace: cores is {cores}; it must be at least 1")
    name, function = lowered(func_or_module)
    program = Program(tuple(ignore), follow)
    run = program.build(function)
    # The estimate also counts accesses that predicates may skip, so it stops the run only if it is
    # far above the limit.
    if program.estimate > ROOM * limit:
        raise TraceTooLarge(_too_many(name, f"up to {program.estimate:,}", limit))
    arguments = _arguments(program, inputs)
    machine = Machine(ROOM * limit)
    machine.site_names = [site.text for site in program.sites]
    with np.errstate(all="ignore"):  # like the compiled kernel: infinities and NaN, no warnings
        run(machine, arguments)
    arrays = {storage.name: storage.data for storage in arguments}
    result = _assemble(name, program, machine, cores, arrays, tuple(ignore))
    if len(result) > limit:
        raise TraceTooLarge(_too_many(name, f"{len(result):,}", limit))
    return result


def _too_many(name: str, count: str, limit: int) -> str:
    return (
        f"trace: {name} makes {count} accesses, more than the limit of {limit:,}; trace it at a"
        " smaller size, or without the accesses to local memory"
    )


def lowered(func_or_module: Any) -> tuple[str, Any]:
    """Return the name and the lowered form of the only PrimFunc. Raises LabUsageError unless there
    is exactly one."""
    from needle_tvm._tvm import names as tvm_names
    from needle_tvm.tir import functions as tir_functions

    module = func_or_module
    if isinstance(module, tvm_names.PrimFunc):
        module = tir_functions.module_of(module)
    try:
        functions = tir_functions.prim_funcs(tir_functions.lowered_loops(module))
    except tvm_names.INTERNAL_ERROR as error:
        # The rest of its text is a trace of C++ calls.
        reason = str(error).strip().splitlines()[-1]
        raise NotLowered(f"trace: TVM cannot lower the schedule: {reason}") from error
    if len(functions) != 1:
        raise LabUsageError(f"trace: the module must have one PrimFunc; it has {list(functions)}")
    return next(iter(functions.items()))


def _arguments(program: Program, inputs: Sequence[Any] | Mapping[str, Any]) -> list[Storage]:
    parameters = [program.buffers[number] for number in program.arguments]
    names = [name for name, *_ in parameters]
    if not isinstance(inputs, Mapping):
        if len(inputs) > len(names):
            raise LabUsageError(f"trace: {len(inputs)} inputs for the {len(names)} buffers {names}")
        inputs = dict(zip(names, inputs, strict=False))
    for name in inputs:
        if name not in names:
            raise LabUsageError(f"trace: no argument {name!r}; the arguments are {names}")
    storages = []
    for slot, (name, _, dtype, _) in zip(program.slots.values(), parameters, strict=False):
        size = slot.size
        if name not in inputs:
            storages.append(Storage(name, size, "all", filled(size, slot.dtype)))
            continue
        array = np.asarray(inputs[name])
        if array.size != size or array.dtype != slot.dtype:
            raise LabUsageError(
                f"trace: {name} takes {size} elements of {dtype}, not {array.size} of {array.dtype}"
            )
        storages.append(Storage(name, size, "all", array.reshape(-1).copy()))
    return storages


def _assemble(
    name: str,
    program: Program,
    machine: Machine,
    cores: int,
    arrays: dict[str, np.ndarray],
    ignore: tuple[str, ...],
) -> Trace:
    """Assemble the columns of the trace from the machine's log."""
    log = machine.log
    single = [(step, entry) for step, entry in enumerate(log) if type(entry) is int]
    packed = np.array([entry for _, entry in single], np.int64)
    zeros = np.zeros(len(single), np.int64)
    columns = {
        "step": [np.array([step for step, _ in single], np.int64)],
        "site": [packed & ((1 << SITE_BITS) - 1)],
        "index": [packed >> SITE_BITS],
        "thread": [zeros],
        "lane": [zeros],
    }
    for step, entry in enumerate(log):
        if type(entry) is int:
            continue
        site, index, active = entry
        if active is None:
            active = np.ones(index.shape, bool)
        thread, lane = np.nonzero(active)
        columns["step"].append(np.full(len(thread), step))
        columns["site"].append(np.full(len(thread), site))
        columns["index"].append(index[active])
        columns["thread"].append(thread)
        columns["lane"].append(lane)
    joined = {key: np.concatenate(parts) for key, parts in columns.items()}
    steps, thread = joined["step"], joined["thread"]
    worker, time = np.zeros_like(steps), steps.copy()
    regions, shift = [], 0
    shifts = np.zeros(len(log) + 1, np.int64)
    for kind, start, stop, blocks, threads in machine.regions:
        inside = (steps >= start) & (steps < stop)
        extra = 0
        if kind == "kernel":
            worker[inside] = thread[inside] // threads
            thread[inside] %= threads
        else:
            chunk = -(-blocks // cores)
            worker[inside] = thread[inside] // chunk
            time[inside] += (thread[inside] % chunk) * (stop - start)
            extra = (chunk - 1) * (stop - start)
        regions.append(Region(kind, start + shift, stop + shift + extra, blocks, threads))
        shifts[stop:] += extra
        shift += extra
    time += shifts[steps]
    loops = _loop_values(program, machine, steps, joined["site"], thread)
    order = np.lexsort((joined["lane"], thread, worker, time))
    return Trace(
        name,
        "gpu" if any(region[0] == "kernel" for region in machine.regions) else "cpu",
        placed(program.buffers, program.owned),
        tuple(program.sites),
        tuple(regions),
        tuple(int(step + shifts[step]) for step in machine.barriers),
        joined["site"][order].astype(np.int32),
        joined["index"][order],
        time[order],
        worker[order].astype(np.int32),
        thread[order].astype(np.int32),
        joined["lane"][order].astype(np.int32),
        arrays,
        ignore,
        tuple(replace(loop, value=loop.value[order]) for loop in loops),
        {name: count for name, count in machine.unset.items() if count},
    )


def _loop_values(
    program: Program, machine: Machine, steps: np.ndarray, sites: np.ndarray, threads: np.ndarray
) -> list[LoopValues]:
    """Return the values of each loop's variable at each access; none if the loops were not
    recorded."""
    starts: list[list[int]] = [[] for _ in program.nests]
    turns: list[list[tuple[int, ...]]] = [[] for _ in program.nests]
    for step, number, variables in machine.turns:
        starts[number].append(step)
        turns[number].append(variables)
    found = []
    for number, nest in enumerate(program.nests):
        around = [number in site.nests for site in program.sites]
        inside = np.array(around, bool)[sites]
        if number in program.parallel_nests:
            columns = threads[inside][:, None]
        else:
            # The last iteration that began at or before the access.
            place = np.searchsorted(np.array(starts[number]), steps[inside], side="right") - 1
            columns = np.array(turns[number], np.int32).reshape(-1, len(nest))[place]
        for (name, extent), column in zip(nest, columns.T, strict=True):
            value = np.full(len(sites), LoopValues.OUTSIDE, np.int32)
            value[inside] = column
            if extent > 1:
                found.append(LoopValues(name, extent, value))
    return found


def placed(
    buffers: Sequence[tuple[str, str, str, tuple[int, ...]]], owned: Collection[int] = ()
) -> tuple[BufferInfo, ...]:
    """Return the buffers (name, scope, dtype, shape) with their addresses. `owned` holds the
    numbers of the buffers that each worker has a copy of."""
    ends: dict[str, int] = {}
    placed = []
    for number, (name, scope, dtype, shape) in enumerate(buffers):
        space = scope or "global"
        base = ends.get(space, 0)
        info = BufferInfo(name, space, dtype, math.prod(shape), base, shape, number in owned)
        ends[space] = base + -(-info.size * info.itemsize // ALIGNMENT) * ALIGNMENT
        placed.append(info)
    return tuple(placed)
