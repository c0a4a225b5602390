"""The steps of `make gpu-test`, one after the other in limited time, and the build of needle's
native modules.

For a bare host: standard library alone, and nothing is installed but needle's own native modules,
into this folder.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from bench.gpu import turns
from bench.gpu.host import ROOT, Refusal

BUILD = ROOT / "build" / "gpu"

# Tests that take a device, and those of the GPU alone; the suite runs them on emulated devices
# (tests/ndarray/test_cuda_emulated.py). Left out is, by words in names, what is about a CPU's
# kernels or threads.
DEVICE_TESTS = (
    "tests/ndarray/test_cuda.py",
    "tests/ndarray/test_nd_convolution.py",
    "tests/ndarray/test_nd_counters.py",
    "tests/ndarray/test_nd_elementwise.py",
    "tests/ndarray/test_nd_halves.py",
    "tests/ndarray/test_nd_indexing.py",
    "tests/ndarray/test_nd_layers.py",
    "tests/ndarray/test_nd_matmul.py",
    "tests/ndarray/test_nd_reduce.py",
    "tests/test_ops.py",
    "tests/test_optim.py",
)
LEFT_OUT = ("instruction_set", "by_each_kernel", "threads", "exported_and_documented")
MORE_DEVICE_TESTS = (
    "tests/test_autograd.py",
    "tests/test_autograd_safety.py",
    "tests/test_conv.py",
    "tests/test_dtypes.py",
    "tests/test_getitem.py",
    "tests/test_nn.py",
    "tests/test_nn_layers.py",
    "tests/test_training.py",
)
SANITIZED = (
    "tests/ndarray/test_nd_convolution.py",
    "tests/ndarray/test_nd_elementwise.py",
    "tests/ndarray/test_nd_indexing.py",
    "tests/ndarray/test_nd_layers.py",
    "tests/ndarray/test_nd_matmul.py",
    "tests/ndarray/test_nd_reduce.py",
)
SANITIZERS = ("memcheck", "racecheck", "initcheck")

CUT = "cut short"  # by time, which in a sample is no failure

_LEAST_SECONDS = 15.0  # nothing is worth starting with less
_LAST_TEST = 0.15  # of a step's time: what the tests that are running when time is up may take
UNTIL, REASON = "NEEDLE_TESTS_UNTIL", "no time was left"  # deadline.py's
_WORKERS = 12  # processes that test at once; each has a context on the GPU


@dataclass(frozen=True)
class Step:
    """A run of pytest, under `before` where that is given; `share` is its part of the time. A
    `sample` may be cut short without harm; `parallel` steps run in several processes at once."""

    title: str
    arguments: tuple[str, ...]
    share: int
    before: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    sample: bool = False
    parallel: bool = False


def test(more: Sequence[str], architecture: str, deadline: float) -> int:
    """Builds needle for the GPU and runs its tests; 0 only where some ran, none failed and all but
    samples were whole. `more` are further arguments for pytest. Refusal where the build fails."""
    require(architecture)
    # Only files that have such tests: the others import what a GPU host need not have.
    files = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if "mark.gpu" in path.read_text()
    ]
    code, told = run_all(steps(files), more, deadline)
    print("\n".join(f"gpu-test: {line}" for line in told))
    return code


def steps(marked: Sequence[str]) -> list[Step]:
    """What there is to run; `marked` are the files with tests marked `gpu`."""
    words = " and ".join(f"not {word}" for word in LEFT_OUT)
    on_device = ("--device", "cuda", "-m", "not slow and not peer and not gpu", "-k", words)
    found = [
        Step("tests marked gpu", ("-m", "gpu", *marked), 3, parallel=True),
        Step(
            "compiled models and ops",
            ("tests/tvm/emulated_gpu/checks.py",),
            10,
            environment={"NEEDLE_CHECKS_ON": "gpu"},
            parallel=True,
        ),
        Step(
            "arrays and ops",
            (*on_device, *DEVICE_TESTS, *MORE_DEVICE_TESTS),
            6,
            environment={"NEEDLE_CASES": "50"},
            parallel=True,
        ),
    ]
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is not None:
        found += [
            Step(
                f"compute-sanitizer {tool}",
                (*on_device, "-x", *SANITIZED),
                2,
                before=(sanitizer, f"--tool={tool}", "--error-exitcode=9"),
                environment={"NEEDLE_CASES": "2"},
                sample=True,
            )
            for tool in SANITIZERS
        ]
    return found


def require(architecture: str) -> None:
    """Builds needle's native modules for a GPU into the source tree; what was built before is not
    built again. Refusal where it fails."""
    print(f"building needle's modules for {architecture}", flush=True)
    start = time.time()
    reason = build(architecture)
    if reason is not None:
        raise Refusal(f"needle's native modules cannot be built: {reason}")
    print(f"built in {time.time() - start:.0f} s", flush=True)


def build(architecture: str) -> str | None:
    """Runs CMake; why not where it fails."""
    options = [
        "-DNEEDLE_CUDA=ON",
        f"-DCMAKE_CUDA_ARCHITECTURES={architecture.removeprefix('sm_')}-real",
        f"-DPython_EXECUTABLE={sys.executable}",
    ]
    if shutil.which("ninja") and not (BUILD / "CMakeCache.txt").exists():
        options += ["-G", "Ninja"]  # a host need not have make
    commands = (
        ["cmake", "-S", ".", "-B", str(BUILD), *options],
        ["cmake", "--build", str(BUILD), "-j", str(len(os.sched_getaffinity(0)))],
        ["cmake", "--install", str(BUILD), "--prefix", "."],
    )
    for command in commands:
        try:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        except OSError as error:
            return f"{command[0]}: {error}"
        if done.returncode:
            lines = (done.stdout + done.stderr).splitlines()
            wrong = [line for line in lines if "error" in line.lower()]
            return " ".join(" ".join((wrong or lines)[-12:]).split())[-600:]
    return None


def run_all(
    found: Sequence[Step], more: Sequence[str], deadline: float, clock: turns.Clock = time.time
) -> tuple[int, list[str]]:
    """Runs the steps, each within its share of what is left; 0 only where something ran, nothing
    failed and all but samples were whole; and a line for each step.

    `more` are further arguments for pytest.
    """
    by_title = {step.title: step for step in found}
    ran, good, told = 0, True, []

    def one(title: str, seconds: float) -> None:
        nonlocal ran, good
        step = by_title[title]
        print(f"gpu-test: {title}, up to {seconds:.0f} s", flush=True)
        outcome, counts = _run(step, more, seconds)
        ran += counts.get("passed", 0) + counts.get("failed", 0)
        whole = step.sample or not counts.get("left out")
        good = good and whole and (outcome == "passed" or (step.sample and outcome == CUT))
        numbers = ", ".join(f"{number} {what}" for what, number in counts.items())
        told.append(f"{title}: {outcome}{f' ({numbers})' if numbers else ''}")

    def skip(title: str, why: str) -> None:
        nonlocal good
        good = False
        told.append(f"{title}: not run, {why}")

    shares = {step.title: step.share for step in found}
    turns.in_turn(shares, deadline, _LEAST_SECONDS, one, skip, clock)
    return (0 if good and ran else 1), told


def _run(step: Step, more: Sequence[str], seconds: float) -> tuple[str, dict[str, int]]:
    """ "passed", or what else came of it, and how many tests did what."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        # The host's own packages may warn of anything: that is shown, and fails no test.
        command = [*step.before, sys.executable, "-m", "pytest", "-W", "default", "-q"]
        command += ["-p", "bench.gpu.deadline", f"--junitxml={report}"]
        if step.parallel and importlib.util.find_spec("xdist") is not None:
            workers = max(1, min(_WORKERS, len(os.sched_getaffinity(0)) - 2))
            command += ["-n", str(workers)]
        command += [*step.arguments, *more]
        paths = f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"
        until = time.time() + (1 - _LAST_TEST) * seconds
        environment = {**os.environ, UNTIL: str(until), **step.environment}
        environment["PYTHONPATH"] = paths
        code, _ = turns.run_for(command, seconds, cwd=ROOT, environment=environment)
        counts = count_tests(report.read_text()) if report.is_file() else {}
    if code is None:
        return (CUT if step.sample else f"not done within {seconds:.0f} s"), counts
    return ("passed" if code == 0 else f"failed (exit {code})"), counts


def count_tests(report: str) -> dict[str, int]:
    """Passed, failed and skipped of a JUnit report; and, where there was no time for all, how many
    were left out for that."""
    suites = list(ElementTree.fromstring(report).iter("testsuite"))
    total, failed, errors, skipped = (
        sum(int(suite.get(key, 0)) for suite in suites)
        for key in ("tests", "failures", "errors", "skipped")
    )
    late = sum(each.get("message") == REASON for suite in suites for each in suite.iter("skipped"))
    wrong = failed + errors
    counts = {"passed": total - wrong - skipped, "failed": wrong, "skipped": skipped - late}
    return counts | ({"left out": late} if late else {})
