"""`make gpu-test`: the tests that need a GPU, in steps, one after the other until the deadline.

Standard library only: nothing is installed on the host but needle's own native modules.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from tests import ROOT

# Tests that take a device, and those of the GPU alone. The suite runs them on emulated devices
# (tests/needle/backend_ndarray/test_cuda_emulated.py). Words in names leave out what is about a
# CPU's kernels or threads.
DEVICE_TESTS = (
    "tests/needle/backend_ndarray/test_cuda.py",
    "tests/needle/backend_ndarray/test_nd_convolution.py",
    "tests/needle/backend_ndarray/test_nd_counters.py",
    "tests/needle/backend_ndarray/test_nd_elementwise.py",
    "tests/needle/backend_ndarray/test_nd_halves.py",
    "tests/needle/backend_ndarray/test_nd_indexing.py",
    "tests/needle/backend_ndarray/test_nd_layers.py",
    "tests/needle/backend_ndarray/test_nd_matmul.py",
    "tests/needle/backend_ndarray/test_nd_reduce.py",
    "tests/needle/ops/test_ops.py",
    "tests/needle/nn/test_optim.py",
)
LEFT_OUT = ("instruction_set", "by_each_kernel", "threads", "exported_and_documented")
MORE_DEVICE_TESTS = (
    "tests/needle/test_autograd.py",
    "tests/needle/test_autograd_safety.py",
    "tests/needle/nn/test_conv.py",
    "tests/needle/test_dtypes.py",
    "tests/needle/ops/test_getitem.py",
    "tests/needle/nn/test_nn.py",
    "tests/needle/nn/test_nn_layers.py",
    "tests/needle/nn/test_training.py",
)
SANITIZED = (
    "tests/needle/backend_ndarray/test_nd_convolution.py",
    "tests/needle/backend_ndarray/test_nd_elementwise.py",
    "tests/needle/backend_ndarray/test_nd_indexing.py",
    "tests/needle/backend_ndarray/test_nd_layers.py",
    "tests/needle/backend_ndarray/test_nd_matmul.py",
    "tests/needle/backend_ndarray/test_nd_reduce.py",
)
SANITIZERS = ("memcheck", "racecheck", "initcheck")

_LEAST_SECONDS = 40.0  # a step is not begun with less
_ENDING_SECONDS = 20.0  # for pytest to report once it is interrupted
_WORKERS = 12  # processes that test at once; each has a context on the GPU


@dataclass(frozen=True)
class Step:
    """A run of pytest, under the command `before` if there is one. A `sample` may be cut short by
    the deadline; `parallel` steps run in several processes at once; `compiles` says that it needs
    TVM's compiler, which the second bundle has."""

    title: str
    arguments: tuple[str, ...]
    before: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    sample: bool = False
    parallel: bool = False
    compiles: bool = False


def steps(marked: Sequence[str]) -> list[Step]:
    """All steps; `marked` are the files with tests marked `gpu`."""
    words = " and ".join(f"not {word}" for word in LEFT_OUT)
    on_device = (
        "--device",
        "cuda",
        "-m",
        "not slow and not long and not peer and not gpu",
        "-k",
        words,
    )
    return [
        Step(
            "arrays",
            (*on_device, *DEVICE_TESTS, *MORE_DEVICE_TESTS),
            environment={"NEEDLE_CASES": "50"},
            parallel=True,
        ),
        Step(
            "compiled",
            ("tests/needle_tvm/emulated_gpu/checks.py",),
            environment={"NEEDLE_CHECKS_ON": "gpu"},
            parallel=True,
            compiles=True,
        ),
        Step("marked", ("-m", "gpu", *marked), parallel=True, compiles=True),
        *(
            Step(
                tool,
                (*on_device, "-x", *SANITIZED),
                before=("compute-sanitizer", f"--tool={tool}", "--error-exitcode=9"),
                environment={"NEEDLE_CASES": "2"},
                sample=True,
            )
            for tool in SANITIZERS
        ),
    ]


TITLES = tuple(step.title for step in steps(()))


def run(only: Sequence[str] | None, more: Sequence[str], deadline: float) -> int:
    """Run the steps (of `only` these titles) with more arguments of pytest.

    Returns 0 only if tests ran, none failed and all steps but samples came to their end.
    """
    # Only files that have such tests: the others import what a GPU host need not have.
    marked = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if "mark.gpu" in path.read_text()
    ]
    found = [step for step in steps(marked) if only is None or step.title in only]
    code, told = run_all(found, more, deadline)
    say(told)
    return code


def say(lines: Sequence[str]) -> None:
    """Print lines at once."""
    sys.stdout.writelines(f"gpu-test: {line}\n" for line in lines)
    sys.stdout.flush()


def run_all(found: Sequence[Step], more: Sequence[str], deadline: float) -> tuple[int, list[str]]:
    """Run the steps as `run` does; returns its exit code and a line for each step."""
    ran, good, told = 0, True, []
    for step in found:
        if step.before and shutil.which(step.before[0]) is None:
            told.append(f"{step.title}: not run, there is no {step.before[0]}")
            continue
        if step.compiles and find_spec("tvm.relax") is None:
            told.append(f"{step.title}: not run: make gpu-bundle ARGS=--compiler brings a compiler")
            continue
        seconds = deadline - time.time()
        if seconds < _LEAST_SECONDS:
            told.append(f"{step.title}: not run, no time was left")
            good = good and step.sample
            continue
        say([f"{step.title}, up to {seconds:.0f} s"])
        outcome, counts = run_step(step, more, seconds)
        ran += counts.get("passed", 0) + counts.get("failed", 0)
        passed = outcome == "passed" or (step.sample and outcome == "cut short")
        good = good and passed and not counts.get("failed")
        numbers = ", ".join(f"{number} {what}" for what, number in counts.items())
        told.append(f"{step.title}: {outcome}{f' ({numbers})' if numbers else ''}")
    return (0 if good and ran else 1), told


def find_spec(name: str) -> object | None:
    """The module's spec; None if it or its package is missing."""
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return None


def run_step(step: Step, more: Sequence[str], seconds: float) -> tuple[str, dict[str, int]]:
    """Run one step; returns "passed", "cut short" or "failed", and how many tests did what."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        # The host's own packages may warn of anything: that is shown, and fails no test.
        command = [*step.before, sys.executable, "-m", "pytest", "-W", "default", "-q"]
        command += [f"--junitxml={report}"]
        if step.parallel and find_spec("xdist") is not None:
            workers = max(1, min(_WORKERS, len(os.sched_getaffinity(0)) - 2))
            command += ["-n", str(workers)]
        paths = f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"
        environment = {**os.environ, **step.environment, "PYTHONPATH": paths}
        code = run_for([*command, *step.arguments, *more], seconds, environment)
        counts = count_tests(report.read_text()) if report.is_file() else {}
    if code is None:
        return "cut short", counts
    return ("passed" if code == 0 else f"failed (exit {code})"), counts


def run_for(
    command: Sequence[str], seconds: float, environment: Mapping[str, str] | None = None
) -> int | None:
    """The exit code of a command; None if its time was up.

    An interrupt then lets pytest report what it found. Everything that the command started ends
    with it: a program under compute-sanitizer is a child of it.
    """
    process = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)
    try:
        return process.wait(max(seconds - _ENDING_SECONDS, 0.0))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_ENDING_SECONDS)
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def count_tests(report: str) -> dict[str, int]:
    """The numbers of tests that passed, failed and were skipped in a JUnit report."""
    suites = list(ElementTree.fromstring(report).iter("testsuite"))
    total, failed, errors, skipped = (
        sum(int(suite.get(key, 0)) for suite in suites)
        for key in ("tests", "failures", "errors", "skipped")
    )
    wrong = failed + errors
    return {"passed": total - wrong - skipped, "failed": wrong, "skipped": skipped}
