"""Step 1: does it work? Checks arrays on the device, the eager MLP and the compiled MLP.

If a check fails, the report has the facts needed to fix it on a machine without a GPU: the error,
the first wrong elements, the result of each kernel, and the output of compute-sanitizer.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.gpu import host, measure
from bench.gpu.plan import Contest
from needle_runtime.artifact.tolerance import compare, relative_tolerance
from needle_runtime.process.child import Child, ChildError
from needle_runtime.process.timing import load_arrays, save_arrays

ALLOWED = relative_tolerance("float32", 512)  # the longest sums have 512 terms
_SECONDS = 40.0  # time limit of each check
_SANITIZER_SECONDS = 60.0
_WRONG = 8  # number of wrong elements that are shown
_LINES = 40  # number of lines of compute-sanitizer's output

Check = dict[str, Any]


def run(contest: Contest, folder: Path, say: Callable[[str], None]) -> Check:
    """Run all checks; each of `checks` has its name, `ok` and, if it failed, `said`."""
    from needle_runtime.process.scratch import scratch_folder

    checks: list[Check] = []

    def check(name: str, what: str, **setup: Any) -> None:
        try:
            with Child(name, f"{__name__}:{what}", setup, timeout=_SECONDS) as child:
                answer = child.receive("check")
        except ChildError as error:
            answer = {"ok": False, "said": [str(error), *error.details.splitlines()[-20:]]}
        if not answer["ok"] and "path" in setup:
            answer["sanitizer"] = sanitizer(setup)
        say(f"{name}: {'right' if answer['ok'] else 'WRONG'}")
        for line in (*answer.get("said", ()), *answer.get("sanitizer", ())):
            say(f"  {line}")
        checks.append({"name": name, **answer})

    case = measure.case_of(**contest.subject)
    ready, missing = measure.artifacts(contest, folder)
    with scratch_folder("needle-gpu-") as scratch:
        subject = case.subject(scratch)
        expected = str(scratch / "expected.npz")
        save_arrays(expected, {"y": subject.exact()[0]})
        files = {"inputs": subject.files.inputs, "weights": subject.files.weights}
        check("arrays", "arrays")
        check("needle eager", "eager", expected=expected, recipe=subject.recipe)
        for title, path in ready.items():
            check(title, "compiled", expected=expected, path=str(path), **files)
    for title, reason in missing.items():
        checks.append({"name": title, "ok": False, "said": [f"not compiled: {reason}"]})
    return {"checks": checks}


def sanitizer(setup: dict[str, Any]) -> list[str]:
    """Return compute-sanitizer's output for one call of an artifact."""
    if shutil.which("compute-sanitizer") is None:
        return ["there is no compute-sanitizer here"]
    call = [sys.executable, "-m", __name__, setup["path"], setup["weights"], setup["inputs"]]
    command = ["compute-sanitizer", "--tool=memcheck", "--error-exitcode=9", *call]
    done = host.run(command, _SANITIZER_SECONDS)
    lines = (done.stdout + done.stderr).splitlines()[:_LINES]
    return [f"compute-sanitizer, exit code {done.returncode}:", *lines]


def compared(expected: str, result: np.ndarray) -> Check:
    """Compare a result with the expected one; report its first wrong elements."""
    (want,) = load_arrays(expected)
    compared = compare(want, result, ALLOWED, same_dtype=False)
    if compared.right:
        return {"ok": True, "off": compared.relative}
    said = [f"off by {compared.relative:.1e} of the largest; {compared.what}"]
    if want.shape == result.shape:
        said += [
            f"{place.tolist()}: {result[tuple(place)]!r}, expected {want[tuple(place)]!r}"
            for place in np.argwhere(compared.wrong)[:_WRONG]
        ]
    return {"ok": False, "said": said}


# Code of the child process.


def arrays(setup: dict[str, Any], messages: Iterator[Any]) -> Iterator[Check]:
    """As a service, check device arrays against NumPy: copies, elementwise ops, sum, matmul."""
    from needle import backend_ndarray as nd

    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((65, 33), dtype=np.float32) for _ in range(2))
    x, y = (nd.array(array, device=nd.cuda()) for array in (a, b))
    wide = a.astype(np.float64), b.astype(np.float64)
    pairs = {
        "copied": (x, wide[0]),
        "elementwise": ((x * y + x).exp(), np.exp(wide[0] * wide[1] + wide[0])),
        "transposed": (x.permute((1, 0)).compact(), wide[0].T),
        "sum": (x.sum(axis=1), wide[0].sum(axis=1)),
        "matmul": (x @ y.permute((1, 0)), wide[0] @ wide[1].T),
    }
    wrong = []
    for name, (found, want) in pairs.items():
        compared = compare(want, found.numpy(), ALLOWED, same_dtype=False)
        if not compared.right:
            wrong.append(f"{name}: {compared.what}")
    yield {"ok": not wrong, "said": wrong}


def eager(setup: dict[str, Any], messages: Iterator[Any]) -> Iterator[Check]:
    """As a service, check the eager model on the device."""
    from apps import contestants

    model, _, tensors = contestants.load_needle(**setup["recipe"], device="cuda")
    model.eval()
    yield compared(setup["expected"], model(*tensors).numpy())


def compiled(setup: dict[str, Any], messages: Iterator[Any]) -> Iterator[Check]:
    """As a service, check an artifact with the saved weights; report its kernels if it is wrong."""
    program, inputs = _program(setup["path"], setup["weights"], setup["inputs"])
    answer = compared(setup["expected"], program.run(inputs)[0])
    if not answer["ok"]:
        answer["said"] += kernels(program, inputs)
    yield answer


def _program(path: str, weights: str, inputs: str) -> tuple[Any, list[np.ndarray]]:
    import needle_runtime
    from apps.contestants import load_named

    program = needle_runtime.load(path)
    program.set_params(load_named(weights))
    return program, load_arrays(inputs)


def kernels(program: Any, inputs: list[np.ndarray]) -> list[str]:
    """Return a line for each kernel of a call: its result's shape, extremes and first elements."""
    executor, said = program.executor, []

    def watch(function: Any, name: str, before: bool, result: Any, *args: Any) -> int:
        if not before and not str(name).startswith("vm.builtin."):
            executor.synchronize()
            array = executor.memory.to_numpy([each for each in args if hasattr(each, "shape")][-1])
            flat = array.astype(np.float64).ravel()
            bad = int((~np.isfinite(flat)).sum())
            first = " ".join(f"{value:.6g}" for value in flat[:4])
            most = float(np.abs(flat).max(initial=0.0))
            said.append(f"{name} {array.shape}: {bad} not finite, at most {most:.6g}; {first} ...")
        return 0

    machine = executor.new_machine()
    machine["set_instrument"](watch)
    main = executor.main.by_kernel or "main"
    machine[main](*executor.convert(inputs), *executor.weights)
    return said


if __name__ == "__main__":
    loaded, given = _program(*sys.argv[1:4])
    loaded.run(given)
