"""Run a ladder: build every rung, check it against NumPy in float64, and time all side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernel_lab import build, peers, registry, roofline, search
from kernel_lab.errors import LabError, LabUsageError, NotCompiled
from kernel_lab.field import Field, compile_rung
from kernel_lab.load import busy_share
from kernel_lab.results import LabResult, Roofline, RungResult, SweepPoint
from kernel_lab.rung import Ladder, generation
from kernel_lab.workload import Case, Processor, Size, Workload, describe
from needle_runtime.process import timing
from needle_runtime.process.scratch import scratch_folder
from needle_runtime.process.threads import available_cores
from needle_runtime.process.timing import Progress
from needle_runtime.target import host
from needle_runtime.text import counted, error_line

if TYPE_CHECKING:
    from needle_tvm._tvm.names import Target

_SECONDS_BLOCK = 0.08
_SECONDS_WARM = 0.1
_TIMEOUT = 300.0


@dataclass(frozen=True)
class Request:
    """A run of a ladder. `rungs` are names, or None for all; `sweep` is (dimension, its values).

    `trials` is the budget of each of the two search rungs; 0 leaves them out. Each contestant gets
    `rounds` timed blocks. Without `timed`, rungs are scheduled but neither checked nor timed. With
    `keep_going`, a rung or peer that fails or is wrong does not end the run: it is left out, and
    its `refused` holds the reason. `arch` is the GPU architecture to compile for, such as "sm_75",
    if nothing is timed; None means this machine's GPU, or the newest that the lab knows. With
    `static`, a GPU ladder's rungs are also compiled and traced, to get the numbers that can be
    found without a GPU (`kernel_lab.gpu_figures`). `libraries` is a folder that `compile_libraries`
    has filled: with it, nothing is compiled, and the compiler need not be installed. `others` are
    further contestants: each is a result entry and a function that makes the contestant, given the
    path of the saved inputs.
    """

    workload: str
    device: str = "cpu"
    size: Mapping[str, Any] = field(default_factory=dict)
    rungs: Sequence[str] | None = None
    trials: int = 0
    peers: bool = False
    sweep: tuple[str, Sequence[int]] | None = None
    rounds: int = 7
    seed: int = 0
    timed: bool = True
    keep_going: bool = False
    arch: str | None = None
    static: bool = False
    libraries: Path | None = None
    others: Sequence[tuple[RungResult, Callable[[str], timing.Contestant]]] = ()


def run(request: Request, progress: Progress | None = None) -> LabResult:
    """Carry out a request and return its result.

    Raises LabUsageError for an invalid request, WrongResult if a rung's result differs from
    NumPy's, NotCompiled if nvcc rejects a rung's code, TimingError if a contestant dies.
    """
    say = progress or (lambda done, total, text: None)
    ladder = registry.ladder(request.workload, request.device)
    workload = ladder.workload
    size = workload.size(request.device, request.size)
    chosen = ladder.select(request.rungs)
    points = _sweep_sizes(workload, request, size)
    untimed = _why_untimed(request)
    check_arch(request)
    target = None if request.libraries else build.make_target(request.device, request.arch)
    case = Case(size, build.processor(target) if target else Processor())
    arch = build.architecture(target) if target else build.gpu_architecture()
    entries = []
    for number, rung in enumerate(chosen):
        say(number, len(chosen), f"{rung.name}: scheduling")
        entry = RungResult(
            name=rung.name,
            kind=rung.kind,
            reason=rung.reason,
            after=rung.after,
            expected=rung.expected,
            explained=rung.explained,
            precision=rung.precision,
            refused=rung.refuses(size, arch),
            source=rung.source,
        )
        if request.libraries:
            entry.refused = entry.refused or _why_missing(request.libraries, rung.name)
        elif entry.refused is None:
            entry.module = rung.module(case)
            entry.script = str(entry.module.script())
        entries.append(entry)
    if request.rungs is not None and all(entry.refused for entry in entries):
        raise LabUsageError(f"{entries[0].name} is refused: {entries[0].refused}")
    if request.trials and untimed is None and target is not None:
        entries += _searches(ladder, case, target, request, say)
    result = LabResult(
        workload=workload.name,
        title=workload.title,
        device=request.device,
        size=dict(size),
        flops=workload.flops(size),
        bytes=workload.bytes(size),
        target=build.description(request.device, request.arch),
        machine=host.describe(available_cores()),
        date=host.now(),
        rungs=entries,
        timed=untimed is None,
        untimed_reason=untimed,
        published=list(workload.published.get(request.device, ())),
    )
    if request.static and arch is not None:
        from kernel_lab.gpu_figures import add_figures

        add_figures(ladder, entries, case, arch, say)
    if untimed is not None:
        return result
    _measure(result, workload, case, target, request, say)
    for point in points:
        result.sweep.append(_sweep_point(workload, request, point, target, say))
    result.sweep_axis = request.sweep[0] if request.sweep else None
    return result


def compile_libraries(request: Request, folder: Path, progress: Progress | None = None) -> None:
    """Compile the rungs of a request for the GPUs of its `arch` into a folder.

    The folder gets NAME.so for each rung, or NAME.refused with the reason if the rung does not take
    the size or nvcc rejects its code. Raises LabUsageError for an invalid request.
    """
    say = progress or (lambda done, total, text: None)
    ladder = registry.ladder(request.workload, request.device)
    case = Case(ladder.workload.size(request.device, request.size))
    chosen = ladder.select(request.rungs)
    check_arch(request)
    target = build.make_target(request.device, request.arch)
    folder.mkdir(parents=True, exist_ok=True)
    for number, rung in enumerate(chosen):
        say(number, len(chosen), f"{rung.name}: compiling")
        refused = rung.refuses(case.size, request.arch)
        try:
            if refused is None:
                library = folder / f"{rung.name}.so"
                compile_rung(ladder.workload, rung.name, rung.module(case), target, library)
        except NotCompiled as error:
            refused = error_line(error)
        if refused is not None:
            (folder / f"{rung.name}.refused").write_text(refused)


def _why_missing(libraries: Path, name: str) -> str | None:
    """Return the reason that a folder of `compile_libraries` has no library of a rung; None if it
    has one."""
    reason = libraries / f"{name}.refused"
    if reason.is_file():
        return reason.read_text()
    return None if (libraries / f"{name}.so").is_file() else "it was not compiled"


OWN_SEARCH, META_SCHEDULE = "own_search", "meta_schedule"


def _searches(
    ladder: Ladder, case: Case, target: Target, request: Request, say: Progress
) -> list[RungResult]:
    """Return the two search rungs, each with a budget of `trials`."""
    from needle_tvm._tvm.names import IRModule, te

    trials, seed = request.trials, request.seed
    start = ladder[ladder.tuned_from]
    searches = []
    best = f"The best of {counted(trials, 'trial')} of meta_schedule over"
    space = ladder.space
    if space is not None:
        searches.append(
            _found(
                OWN_SEARCH,
                f"The fastest of {counted(trials, 'choice')} of our own knobs, drawn at random",
                start.name,
                lambda: search.own(space, ladder.workload, case, target, trials, say, seed),
            )
        )
    function = te.create_prim_func(start.define(case)).with_attr("global_symbol", "main")
    plain = IRModule({"main": function})
    searches.append(
        _found(
            META_SCHEDULE,
            f"{best} the definition of {start.name}",
            start.name,
            lambda: search.meta_schedule(plain, case.processor.cores, trials, say, seed),
        )
    )
    return searches


def _found(name: str, reason: str, after: str, look: Callable[[], search.Found]) -> RungResult:
    """Return a search's best schedule as a rung; if it found none, the rung is refused and holds
    the reason."""
    entry = RungResult(name, "search", reason, after=after)
    try:
        best = look()
    except LabError as error:
        entry.refused = str(error)
        return entry
    entry.notes, entry.module = best.notes, best.module
    entry.script = str(best.module.script())
    return entry


def _why_untimed(request: Request) -> str | None:
    """Return the reason that nothing is timed; None if rungs are timed. Raises LabUsageError if
    rungs should be timed and cannot be.

    GPU rungs are scheduled, compiled and traced without a GPU; only timing needs one.
    """
    if not request.timed:
        return "timing was not requested"
    if request.device != "cuda":
        return None
    reason = build.why_no_gpu()
    if reason is not None:
        raise LabUsageError(
            f"{reason}: --untimed compiles and traces the ladder without timing it, and --arch"
            " sm_75 (or another) chooses the GPU that it is compiled for"
        )
    return None


def check_arch(request: Request) -> None:
    """Raise LabUsageError if `arch` is given but the device is not a GPU, or something is to be
    timed."""
    if request.arch is None:
        return
    generation(request.arch)
    if request.device != "cuda":
        raise LabUsageError(
            f"arch {request.arch} is a GPU architecture, but the device is a CPU: omit arch"
        )
    if request.timed:
        raise LabUsageError(
            f"arch {request.arch}: code for another GPU cannot be timed here: use --untimed"
        )


def _measure(
    result: LabResult,
    workload: Workload,
    case: Case,
    target: Target | None,
    request: Request,
    say: Progress,
) -> None:
    """Time the rungs that are not refused, with peers and probes of the machine's limits."""
    runnable = [entry for entry in result.rungs if entry.refused is None]
    if request.peers:
        for peer in peers.of(workload, request.device):
            if peer.missing:
                result.peers_missing[peer.name] = peer.missing
            else:
                result.peers.append(peer.entry())
    with scratch_folder("kernel-lab-") as folder:
        field_ = Field(
            workload, case, target, folder, request.seed, request.device, request.keep_going
        )
        for number, entry in enumerate(runnable):
            say(number, len(runnable), f"{entry.name}: compiling")
            library = request.libraries and request.libraries / f"{entry.name}.so"
            field_.add_rung(entry, library)
        for entry in result.peers:
            field_.add_peer(entry)
        for entry, make in request.others:
            result.peers.append(entry)
            field_.add(entry, make(field_.inputs))
        probes = field_.add_probes() if request.device == "cpu" else {}
        before = busy_share()
        by_name = hold_contest(field_, request.rounds, _SECONDS_BLOCK, say)
        shares = [share for share in (before, busy_share()) if share is not None]
        result.load = max(shares, default=None)
    if probes:
        result.roofline = _limits(workload, case.size, by_name, probes)
    for entry in (*runnable, *result.peers):
        if entry.refused is None:
            _fill(entry, result, by_name)


def hold_contest(
    contest: Field, rounds: int, block_seconds: float, say: Progress
) -> dict[str, timing.Result]:
    """Time the contestants of a field side by side; return their results by name."""
    found = timing.contest(
        contest.contestants,
        rounds=rounds,
        block_seconds=block_seconds,
        idle_seconds=timing.IDLE_SECONDS[contest.device],
        warmup_seconds=_SECONDS_WARM,
        min_calls=1,
        timeout=_TIMEOUT,
        check=contest.check,
        leave_out=contest.leave_out,
        progress=say,
    )
    return {outcome.name: outcome for outcome in found}


def _limits(
    workload: Workload,
    size: Size,
    timed: Mapping[str, timing.Result],
    probes: Mapping[str, roofline.Probe],
) -> Roofline:
    """Return the roofline from the fastest block of each probe: a limit is not the average."""

    def rate(name: str) -> float:
        work = probes[name].bytes or probes[name].flops
        return work / min(timed[name].seconds) / 1e9

    return roofline.limits(
        workload,
        size,
        gigaflops=rate(roofline.PEAK),
        gigabytes=rate(roofline.TRIAD),
        caches={each: rate(roofline.cache_triad(each)) for each in roofline.CACHES},
    )


def _fill(entry: RungResult, result: LabResult, timed: Mapping[str, timing.Result]) -> None:
    """Fill in an entry's times and ratios."""
    if timed[entry.name].device:
        entry.launch_seconds = timed[entry.name].spread
    timed = {name: own_time(each) for name, each in timed.items()}
    outcome = timed[entry.name]
    entry.seconds = outcome.spread
    entry.blocks, entry.calls = list(outcome.seconds), outcome.calls
    entry.gigaflops = result.flops / outcome.median / 1e9
    if result.roofline is not None:
        entry.roofline = result.roofline.seconds / outcome.median
    sound = {each.name: each for each in result.rungs if each.refused is None}
    naive = next((r.name for r in sound.values() if r.kind == "naive" and r.name in timed), None)
    if naive is not None:
        entry.speedup_naive = timing.ratio(outcome, timed[naive])
    if entry.after in sound and entry.after in timed:
        entry.speedup_previous = timing.ratio(outcome, timed[entry.after])
        entry.surprising = surprises(entry.speedup_previous.median, entry.expected)


def own_time(outcome: timing.Result) -> timing.Result:
    """Return the outcome with the GPU's own times, if there are any, in place of the times that
    include launch and wait."""
    whole = len(outcome.device) == len(outcome.seconds)
    return replace(outcome, seconds=outcome.device) if whole else outcome


def surprises(factor: float, expected: tuple[float, float] | None) -> bool:
    """Return whether a factor is below half the lower end of the expected range or above 1.5 times
    its upper end."""
    return expected is not None and not 0.5 * expected[0] <= factor <= 1.5 * expected[1]


def _sweep_sizes(workload: Workload, request: Request, size: Size) -> list[Size]:
    """Return the sweep's sizes, checked before anything runs."""
    if request.sweep is None:
        return []
    name, values = request.sweep
    return [workload.size(request.device, {**size, name: value}) for value in values]


def _sweep_point(
    workload: Workload, request: Request, size: Size, target: Target, say: Progress
) -> SweepPoint:
    """Time the requested rungs at one size of a sweep, by default all rungs except naive and failed
    ones."""
    ladder = registry.ladder(request.workload, request.device)
    standing = [r.name for r in ladder.rungs if r.kind in ("rewrite", "schedule")]
    chosen = ladder.select(request.rungs or standing)
    case = Case(size, build.processor(target))
    seconds: dict[str, float | None] = {}
    with scratch_folder("kernel-lab-") as folder:
        contest = Field(workload, case, target, folder, request.seed, request.device)
        for rung in chosen:
            seconds[rung.name] = None
            if rung.refuses(size, build.architecture(target)) is None:
                entry = RungResult(rung.name, rung.kind, rung.reason, precision=rung.precision)
                entry.module = rung.module(case)
                contest.add_rung(entry)
        for peer in peers.of(workload, request.device) if request.peers else ():
            if not peer.missing:
                contest.add_peer(peer.entry())
        by_name = hold_contest(
            contest,
            max(3, request.rounds // 2),
            _SECONDS_BLOCK / 2,
            lambda done, total, text: say(done, total, f"{describe(size)}: {text}"),
        )
    seconds.update({entry.name: by_name[entry.name].median for entry in contest.entries})
    return SweepPoint(dict(size), workload.flops(size), seconds)
