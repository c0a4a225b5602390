"""One artifact for all sizes, compared with one for only the current size, and with ONNX Runtime
and OpenVINO with dynamic axes. All are called as users call them, ours through needle_runtime with
arrays.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import apps.peers
import apps.report
import needle as ndl
from apps.subjects import Subject
from bench import cases, contests
from needle_runtime.process.scratch import scratch_folder
from needle_runtime.text import duration

SIZES = (1, 7, 8, 33, 64)
LARGEST = 256  # largest size of the artifact for every size
PEERS = ("onnxruntime", "openvino")
ANY, ONE = "needle, every size", "needle, this size"


@dataclass(frozen=True)
class Sized:
    """A model of `apps.models` with varying sizes: the dims of its input by axis, and the factory's
    option that takes a size; its other options are `fixed`."""

    model: str
    axes: Mapping[int, str]
    option: str = "batch"
    fixed: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.model}, {self.option}"

    def at(self, size: int) -> cases.Case:
        """Return the case of one size."""
        kind = cases.MODELS[self.model]
        options = {**kind.options, **self.fixed, self.option: size}
        return cases.Case(f"{self.name} {size}", 1, drawn=replace(kind, options=options))

    @property
    def dims(self) -> dict[int, dict[int, Any]]:
        """The `dims` for `needle_tvm.compile`."""
        return {0: {axis: ndl.Dim(name, max=LARGEST) for axis, name in self.axes.items()}}


CASES = (
    Sized("mlp", {0: "n"}),
    Sized("conv", {0: "n"}),
    Sized("transformer", {0: "n"}),
    Sized("bert", {1: "n"}, "length"),
    Sized("lstm", {0: "time", 1: "n"}, "length"),
    Sized("lstm", {0: "time", 1: "n"}, fixed={"length": 20}),
    Sized("convnet", {2: "height", 3: "width"}, "image"),
)


def chosen(models: Collection[str] | None) -> Iterable[Sized]:
    """Return the cases of these models, or all cases."""
    return [case for case in CASES if not models or case.model in models]


def run_case(case: Sized, options: argparse.Namespace) -> dict[str, Any]:
    """Run a contest for each size of a case; return JSON values. `compile` of each contest has the
    seconds to compile for every size and for its own size, with checks, without TVM's import."""
    found = {"case": case.name, "sizes": []}
    with scratch_folder("needle-sizes-") as folder:
        subjects = {}
        for size in SIZES:
            (folder / str(size)).mkdir()
            subjects[size] = case.at(size).subject(folder / str(size))
        _compile(subjects[SIZES[0]], folder / "first", options)  # imports the compiler
        seconds = {
            size: {
                ANY: _compile(subject, subject.folder / "any", options, dims=case.dims),
                ONE: _compile(subject, subject.folder / "one", options),
            }
            for size, subject in subjects.items()
        }
        every = subjects[SIZES[0]].folder / "any"
        for size, subject in subjects.items():
            entries = [
                subject.exported(ONE, subject.folder / "one", options.threads, "program"),
                subject.exported(ANY, every, options.threads, "program"),
                *subject.peers(
                    [key for key in PEERS if key in options.peers],
                    options.threads,
                    axes=case.axes,
                ),
            ]
            contest = contests.run(case.at(size).model, entries, options)
            found["sizes"].append({"size": size, "compile": seconds[size], **contest})
    return found


def _compile(subject: Subject, path: Path, options: argparse.Namespace, **choices: Any) -> float:
    """Compile and export a model; return the seconds that compiling took."""
    start = time.perf_counter()
    executable = subject.compile(options.threads, recompile=True, **choices)
    seconds = time.perf_counter() - start
    executable.export(path)
    return seconds


def table(results: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return headings and a row for each size of each case."""
    peers = [apps.peers.PEERS[key].name for key in PEERS]
    rows = [["case", ANY, "its time / this size's", *(f"{name}'s time / ours" for name in peers)]]
    rows[0] += ["compile", "its time / this size's"]
    for case in results:
        for each in case["sizes"]:
            medians = {entry["name"]: entry["median"] for entry in each["contestants"]}
            ratios = [each["ratios"][ONE][ANY], *(each["ratios"][ANY].get(n) for n in peers)]
            row = [each["case"], duration(medians[ANY])]
            row += [apps.report.ratio(ratio) if ratio else "" for ratio in ratios]
            compiled = each["compile"]
            row += [duration(compiled[ANY]), f"{compiled[ANY] / compiled[ONE]:.2f}"]
            rows.append(row)
    return rows
