"""The steps of `make gpu-test` on a machine with a GPU, one after the other, in limited time.

For a bare host: standard library alone, and nothing is installed but needle's own native modules,
into this folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "gpu"

# Files whose tests take a device; those of tests/ndarray/test_cuda.py are of the GPU alone.
DEVICE_TESTS = ("tests/ndarray", "tests/test_ops.py", "tests/test_optim.py", "tests/nn")
SANITIZED = (
    "tests/ndarray/test_nd_convolution.py",
    "tests/ndarray/test_nd_elementwise.py",
    "tests/ndarray/test_nd_indexing.py",
    "tests/ndarray/test_nd_layers.py",
    "tests/ndarray/test_nd_matmul.py",
    "tests/ndarray/test_nd_reduce.py",
)
SANITIZERS = ("memcheck", "racecheck", "initcheck")

_LEAST_SECONDS = 10  # nothing is worth starting with less


@dataclass(frozen=True)
class Step:
    """A run of pytest, under `before` where that is given; `share` is its part of the time."""

    title: str
    arguments: tuple[str, ...]
    share: int
    before: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


def steps(marked: Sequence[str]) -> list[Step]:
    """What there is to run; `marked` are the files with tests marked `gpu`."""
    on_device = ("--device", "cuda", "-m", "not slow and not peer and not gpu")
    present = tuple(path for path in DEVICE_TESTS if (ROOT / path).exists())
    found = [
        Step("tests marked gpu", ("-m", "gpu", *marked), 4),
        Step(
            "compiled models and ops",
            ("tests/tvm/emulated_gpu/checks.py",),
            6,
            environment={"NEEDLE_CHECKS_ON": "gpu"},
        ),
        Step("arrays and ops", (*on_device, *present), 6, environment={"NEEDLE_CASES": "50"}),
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
            )
            for tool in SANITIZERS
        ]
    return found


def build(architecture: str) -> str | None:
    """Builds needle's native modules for the GPU into the source tree; why not where it fails."""
    options = (
        "-DNEEDLE_CUDA=ON",
        f"-DCMAKE_CUDA_ARCHITECTURES={architecture.removeprefix('sm_')}-real",
        f"-DPython_EXECUTABLE={sys.executable}",
    )
    commands = (
        ["cmake", "-S", ".", "-B", str(BUILD), *options],
        ["cmake", "--build", str(BUILD), "-j", str(os.cpu_count() or 1)],
        ["cmake", "--install", str(BUILD), "--prefix", "."],
    )
    for command in commands:
        try:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        except OSError as error:
            return f"{command[0]}: {error}"
        if done.returncode:
            return " ".join((done.stdout + done.stderr).split())[-600:]
    return None


def run_all(
    found: Sequence[Step],
    more: Sequence[str],
    deadline: float,
    clock: Callable[[], float] = time.time,
) -> tuple[int, list[str]]:
    """Runs the steps, each within its share of what is left; 0 only where something ran and nothing
    failed, and a line for each step.

    `more` are further arguments for pytest.
    """
    code, ran, told = 0, 0, []
    pending = sum(step.share for step in found)
    for step in found:
        left = deadline - clock()
        seconds = left * step.share / pending if step is not found[-1] else left
        seconds = min(left, 1.5 * seconds)
        pending -= step.share
        if seconds < _LEAST_SECONDS:
            told.append(f"{step.title}: not run, {max(0.0, left):.0f} s were left")
            code = code or 1
            continue
        print(f"gpu-test: {step.title}, up to {seconds:.0f} s", flush=True)
        outcome, counts = _run(step, more, seconds)
        passed, failed = counts.get("passed", 0), counts.get("failed", 0)
        ran += passed + failed
        numbers = ", ".join(f"{number} {what}" for what, number in counts.items())
        told.append(f"{step.title}: {outcome}{f' ({numbers})' if numbers else ''}")
        code = code or (0 if outcome == "passed" else 1)
    return code or (0 if ran else 1), told


def _run(step: Step, more: Sequence[str], seconds: float) -> tuple[str, dict[str, int]]:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        # The host's own packages may warn of anything: that is shown, and fails no test.
        command = [*step.before, sys.executable, "-m", "pytest", "-W", "default", "-q"]
        command += [f"--junitxml={report}", *step.arguments, *more]
        paths = f"{ROOT}:{ROOT / 'apps'}:{os.environ.get('PYTHONPATH', '')}"
        environment = {**os.environ, **step.environment, "PYTHONPATH": paths}
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=environment, timeout=seconds, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            return f"not done within {seconds:.0f} s", {}
        counts = count_tests(report.read_text()) if report.is_file() else {}
    return ("passed" if done == 0 else f"failed (exit {done})"), counts


def count_tests(report: str) -> dict[str, int]:
    """Passed, failed and skipped of a JUnit report."""
    suites = list(ElementTree.fromstring(report).iter("testsuite"))
    total, failed, errors, skipped = (
        sum(int(suite.get(key, 0)) for suite in suites)
        for key in ("tests", "failures", "errors", "skipped")
    )
    wrong = failed + errors
    return {"passed": total - wrong - skipped, "failed": wrong, "skipped": skipped}
