"""Two searches over one model, TVM's stock one and ours, each a service in a process of its own.

Both start from the same traced graph, target and threads, and both keep the weights as parameters
that are packed once. TVM's search is the pipeline for static shapes with weight packing of its
documentation, cut open so that its records can be counted.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import apps.contestants
from needle_tvm.process.timing import Calls, load_arrays, save_arrays

_FAILED = 1e9  # seconds in TVM's record of a candidate that did not run

_STEPS = {"build": "build", "runn": "run"}
_ERROR = re.compile(r"Error in (build|runn)ing:\n(.*)")

LIBRARY, PARAMS = "stock.so", "params.npz"


def stock(setup: dict[str, Any], messages: Iterator[Any]) -> Iterator[dict[str, Any]]:
    """Run TVM's tune_relax and compile what it found; one answer with counts and seconds.

    The setup has the `recipe` of the model, `threads`, `trials`, `seed`, the `folder` for the
    results, and `batch`, TVM's num_trials_per_iter. TVM checks no candidate's results.
    """
    from needle.trace import trace
    from needle_tvm._tvm.names import ms, relax, sequential, transform
    from needle_tvm.frontend.lowering import translated
    from needle_tvm.lower.variant import Variant
    from needle_tvm.target.spec import resolve
    from needle_tvm.tir.functions import prim_funcs

    model, _, tensors = _model(setup)
    folder, target = Path(setup["folder"]), resolve("cpu", setup["threads"]).to_tvm()
    with tempfile.TemporaryDirectory(prefix="stock-tune-") as logs, target:
        start = time.perf_counter()
        graph = trace(model, *tensors)
        module = sequential(
            [
                transform.DecomposeOpsForInference(),
                transform.CanonicalizeBindings(),
                relax.get_pipeline("zero"),
                transform.AttachAttrLayoutFreeBuffers(),
            ]
        )(translated(graph, target, Variant("fused")))
        database = ms.relax_integration.tune_relax(
            module,
            {},
            target,
            logs,
            max_trials_global=setup["trials"],
            num_trials_per_iter=setup["batch"],
            seed=setup["seed"] + 1,
        )
        searched = time.perf_counter()
        tuned = sequential(
            [
                transform.MetaScheduleApplyDatabase(logs),
                transform.SplitLayoutRewritePreproc(),
                transform.LiftTransformParams(),
                transform.FoldConstant(),
            ]
        )(module)
        relax.build(tuned, target=target).export_library(str(folder / LIBRARY))
        seconds = time.perf_counter() - start
        records = list(database.get_all_tuning_records())
        ran = [record for record in records if _ran(record)]
        rejected = _failures(Path(logs), len(records) - len(ran))
        tasks = len(prim_funcs(module))
    arrays = [leaf.value.numpy() for leaf in graph.params]
    save_arrays(folder / PARAMS, {f"param_{i}": x for i, x in enumerate(arrays)})
    yield {
        "seconds": seconds,
        "search_seconds": searched - start,
        "trials": len(records),
        "rejected": rejected,
        "distinct": _distinct(ran),
        "tasks": tasks,
        "tasks_searched": len({_name(record.workload.mod) for record in records}),
    }


def ours(setup: dict[str, Any], messages: Iterator[Any]) -> Iterator[dict[str, Any]]:
    """Like `stock`, by needle_tvm.compile with a budget of trials and an empty cache."""
    import needle_tvm

    model, _, tensors = _model(setup)
    start = time.perf_counter()
    executable = needle_tvm.compile(
        model,
        *tensors,
        trials=setup["trials"],
        threads=setup["threads"],
        seed=setup["seed"],
        progress=False,
    )
    seconds = time.perf_counter() - start
    if executable.from_cache:
        raise RuntimeError("the cache was not empty: nothing was searched")
    executable.export(Path(setup["folder"]) / "artifact")
    notes = executable.manifest["tuning"]
    rejected: Counter[str] = Counter()
    for note in notes:
        rejected.update(note["rejected"])
    yield {
        "seconds": seconds,
        "search_seconds": None,
        "trials": sum(note["trials"] for note in notes),
        "rejected": dict(rejected),
        "distinct": _distinct(_gated(setup["threads"])),
        "tasks": len(notes),
        "tasks_searched": sum(note["trials"] > 0 for note in notes),
    }


def stock_library(folder: str, inputs: str) -> Calls:
    """A factory: the library that `stock` compiled in TVM's virtual machine, its weights packed."""
    from needle_tvm._tvm.names import relax, tvm

    device = tvm.cpu()
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(Path(folder) / LIBRARY)), device)
    *sets, params = (
        [tvm.runtime.tensor(array, device) for array in arrays]
        for arrays in (
            *apps.contestants.fresh(load_arrays(inputs)),
            load_arrays(Path(folder) / PARAMS),
        )
    )
    packed = machine["main_transform_params"](params)
    main = machine["main"]
    return apps.contestants.calls(
        lambda tensors: main(*tensors, *packed),
        sets,
        lambda found: [x.numpy() for x in ([found] if hasattr(found, "numpy") else found)],
    )


def _model(setup: dict[str, Any]) -> tuple[Any, Any, Sequence[Any]]:
    found: tuple[Any, Any, Sequence[Any]] = apps.contestants.load_needle(**setup["recipe"])
    found[0].eval()
    return found


def _gated(threads: int) -> list[Any]:
    """The records of right candidates in the store of this process's cache folder."""
    from needle_tvm.target.spec import resolve
    from needle_tvm.tune.records.database import RecordDatabase
    from needle_tvm.tune.records.keys import Key
    from needle_tvm.tune.records.rows import GATED
    from needle_tvm.tune.records.store import Store, default_path

    with Store(default_path()) as store:
        key = Key.of(resolve("cpu", threads).to_tvm())
        return list(RecordDatabase(store, key, states=(GATED,)).get_all_tuning_records())


def _ran(record: Any) -> bool:
    times = [float(seconds) for seconds in record.run_secs or ()]
    return bool(times) and max(times) < _FAILED


def _failures(logs: Path, count: int) -> dict[str, int]:
    """The number of candidates by the step and kind of their failure, as TVM's logs tell it.

    `count` candidates did not run. On a busy machine most run into TVM's time limits, for which no
    schedule is to blame.
    """
    found: Counter[str] = Counter()
    for path in logs.rglob("*.log"):
        for step, reason in _ERROR.findall(path.read_text(errors="replace")):
            found[f"{_STEPS[step]} {'timeout' if 'Timeout' in reason else 'error'}"] += 1
    if found.total() != count:  # its logs are for people and may change
        return {"failed": count} if count else {}
    return dict(found)


def _distinct(records: Iterable[Any]) -> int:
    """The number of different scheduled modules among the records, workload by workload."""
    from needle_tvm._tvm.names import Schedule, structural_hash

    found = set()
    for record in records:
        schedule = Schedule(record.workload.mod)
        record.trace.apply_to_schedule(schedule, remove_postproc=False)
        found.add((_name(record.workload.mod), structural_hash(schedule.mod)))
    return len(found)


def _name(module: Any) -> str:
    from needle_tvm._tvm.names import structural_hash

    return structural_hash(module)
