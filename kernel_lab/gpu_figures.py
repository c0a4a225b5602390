"""The figures of a GPU rung that need no run on a GPU.

Registers, spills and shared memory are ptxas' own figures. Occupancy follows from these and the
threads of a block (`occupancy`). Sectors and banks are counted in a trace (`trace.gpu`); loads from
shared memory count as joined if nvcc joined all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kernel_lab import ir_views
from kernel_lab.cross_compile import Kernel, compile_together
from kernel_lab.errors import LabError, LabUsageError
from kernel_lab.occupancy import occupancy
from kernel_lab.results import GpuFigures, KernelFigures, Requests, RungResult
from kernel_lab.rung import Ladder
from kernel_lab.scaled import scaled_trace
from kernel_lab.trace import Trace, gpu
from kernel_lab.workload import Case, describe
from needle_runtime.errors import NeedleTVMError
from needle_runtime.process.timing import Progress

if TYPE_CHECKING:
    from needle_tvm._tvm.names import IRModule

_JOINED = {"v2": 8, "v4": 16}  # bytes of a thread's vector access in PTX


def add_figures(
    ladder: Ladder, entries: Sequence[RungResult], case: Case, arch: str, say: Progress
) -> None:
    """Fill in `static` for the entries that have a module; all of them are compiled together.

    If nvcc is missing or rejects the code, or no trace is small enough, the figures say so.
    """
    scheduled = [entry for entry in entries if entry.module is not None]
    say(0, len(scheduled), f"compiling for {arch}")
    compiled: dict[str, list[Kernel]] = {}
    uncompiled: tuple[str, ...] = ()
    try:
        sources = {entry.name: ir_views.cuda_source(entry.module, arch) for entry in scheduled}
        compiled = compile_together(sources, arch)
    except NeedleTVMError as error:
        uncompiled = (str(error),)
    for number, entry in enumerate(scheduled):
        say(number, len(scheduled), f"{entry.name}: counting")
        kernels = compiled.get(entry.name, [])
        requests: Requests | None = None
        untraced: tuple[str, ...] = ()
        try:
            traced = scaled_trace(ladder.workload, ladder[entry.name], case, ignore=("local",))
            requests = requests_of(traced.trace, traced.size, kernels)
        except LabError as error:
            untraced = (str(error),)
        entry.static = GpuFigures(
            arch,
            tuple(kernel_figures(kernel, arch) for kernel in kernels),
            requests,
            (*uncompiled, *untraced),
        )


def compiled_figures(
    module: IRModule, trace: Trace, size: Mapping[str, Any], arch: str
) -> GpuFigures:
    """Return the figures of one module, compiled for `arch`, and of its trace made at `size`.

    If nvcc is missing or rejects the code, `missing` says so.
    """
    kernels: list[Kernel] = []
    missing: tuple[str, ...] = ()
    try:
        kernels = compile_together({"main": ir_views.cuda_source(module, arch)}, arch)["main"]
    except NeedleTVMError as error:
        missing = (str(error),)
    figures = tuple(kernel_figures(kernel, arch) for kernel in kernels)
    return GpuFigures(arch, figures, requests_of(trace, size, kernels), missing)


def kernel_figures(kernel: Kernel, arch: str) -> KernelFigures:
    """Return the figures of one compiled kernel."""
    used = kernel.resources
    try:
        held = occupancy(arch, kernel.threads, used.registers, used.shared)
    except LabUsageError:  # a GPU that is not in the table
        held = None
    return KernelFigures(
        used.kernel,
        kernel.threads,
        used.registers,
        used.spill_stores,
        used.spill_loads,
        used.shared,
        held,
    )


def requests_of(trace: Trace, size: Mapping[str, Any], kernels: Sequence[Kernel]) -> Requests:
    """Return the requests of a trace made at `size`; `kernels` show which loads nvcc joined, if
    any."""
    sectors: dict[bool, dict[str, list[int]]] = {False: {}, True: {}}
    degree: dict[bool, int] = {}
    widths = {False: _width(kernels, "ld.shared"), True: _width(kernels, "st.shared")}
    for report in gpu.site_reports(trace):
        if report.scope == "global":
            totals = sectors[report.is_store].setdefault(report.buffer, [0, 0])
            totals[0] += report.moved // gpu.SECTOR
            totals[1] += report.requests
        else:
            found = gpu.joined_degree(trace, report, widths[report.is_store])
            degree[report.is_store] = max(found, degree.get(report.is_store, 0))
    loads, stores = (
        {name: moved / asked for name, (moved, asked) in sectors[is_store].items()}
        for is_store in (False, True)
    )
    return Requests(dict(size), loads, stores, degree.get(False), degree.get(True))


def _width(kernels: Sequence[Kernel], access: str) -> int:
    """Return the bytes that each thread accesses at once in PTX if all such accesses are vectors of
    one width. Otherwise return 0, so that the accesses of the schedule's own loops are counted."""
    found = {width for kernel in kernels for width in kernel.counts.accesses.get(access, {})}
    return _JOINED.get(found.pop(), 0) if len(found) == 1 else 0


HEADINGS = (
    "",
    "threads",
    "regs",
    "spills",
    "shared",
    "warps/SM",
    "limit",
    "banks",
    "sectors/load",
    "sectors/store",
)


def figure_rows(entries: Sequence[RungResult]) -> list[list[str]]:
    """Return a row of cells under HEADINGS for each kernel of the rungs that have figures."""
    rows = []
    for entry in entries:
        if entry.static is None:
            continue
        asked = entry.static.requests
        last = ("", "", "")
        if asked is not None:
            last = (_degrees(asked), _sectors(asked.loads), _sectors(asked.stores))
        if not entry.static.kernels:
            rows.append([entry.name, *[""] * 6, *last])
        for number, one in enumerate(entry.static.kernels):
            name = entry.name if number == 0 else f"  {one.kernel.removeprefix('main_')}"
            rows.append([name, *_cells(one), *(last if number == 0 else ("", "", ""))])
    return rows


def notes(entries: Sequence[RungResult]) -> list[str]:
    """Return lines on the meaning of the columns, on the traced sizes, and on missing figures."""
    by_size: dict[str, list[str]] = {}
    missing: dict[str, None] = {}
    for entry in entries:
        if entry.static is not None:
            missing.update(dict.fromkeys(entry.static.missing))
            if entry.static.requests is not None:
                by_size.setdefault(describe(entry.static.requests.size), []).append(entry.name)
    counted = "; ".join(f"{', '.join(names)} at {size}" for size, names in by_size.items())
    said = [
        "None of this was measured on a GPU. Registers of a thread, bytes spilled (stored and"
        " loaded) and bytes of shared memory of a block are ptxas' figures; the warps that an SM"
        " holds, and their limit, follow from these and a block's threads.",
        "Banks: the most turns that one load/store of shared memory takes; 1 is no conflict."
        " Sectors: pieces of 32 bytes that a request of a warp touches: 1 if all threads access one"
        " element; 4 if neighbouring threads access neighbouring elements of 4 bytes, and 16 at 16"
        " bytes.",
    ]
    return [*said, *([f"Counted in traces: {counted}."] if counted else []), *missing]


def _cells(one: KernelFigures) -> tuple[str, ...]:
    held = one.occupancy
    return (
        f"{one.threads:,}",
        str(one.registers),
        f"{one.spill_stores:,}/{one.spill_loads:,}",
        f"{one.shared:,}",
        f"{held.warps}/{held.most} {held.share:.0%}" if held else "unknown",
        ", ".join(name.removesuffix(" memory") for name in held.limits) if held else "",
    )


def _degrees(asked: Requests) -> str:
    if asked.load_degree is None and asked.store_degree is None:
        return ""
    return f"{asked.load_degree or '-'}/{asked.store_degree or '-'}"


def _sectors(found: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {number:.3g}" for name, number in found.items())
