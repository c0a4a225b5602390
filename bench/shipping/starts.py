"""Measures new processes: the import, the first answer, and the memory resident at that point."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from apps.contestants import check_agreement
from bench import contests
from bench.shipping.environments import Environment, output_of
from bench.shipping.models import AOTINDUCTOR, ONNXRUNTIME, OURS, Shipped
from needle_runtime.process.threads import thread_environment
from needle_runtime.process.timing import Result
from needle_tvm import terminal

IMPORT, FIRST, NUMPY = "import after NumPy", "start to first answer", "Python and NumPy"

# Needle's own import is lazy. So the statement looks up `load` and loads the libraries that the
# first load would bring, because ONNX Runtime's import loads its library too.
_IMPORTS = {
    OURS: "from needle_runtime import load; from needle_runtime._tvm.ffi import native; native()",
    ONNXRUNTIME: "import onnxruntime",
    AOTINDUCTOR: "from torch._inductor import aoti_load_package",
}
_TIMED_IMPORT = """
import numpy, time
start = time.perf_counter()
{statement}
print(time.perf_counter() - start)
"""

_NUMPY = "import numpy\nprint()"
_ANSWERS = {
    OURS: """
import needle_runtime
y = needle_runtime.load(path)(x)
""",
    ONNXRUNTIME: """
import onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = {threads}
session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
(y,) = session.run(None, {{session.get_inputs()[0].name: x}})
""",
    AOTINDUCTOR: """
import torch
runner = torch._inductor.aoti_load_package(path, run_single_threaded=True)
with torch.inference_mode():
    y = runner(torch.from_numpy(x)).numpy()
""",
}
# Neither argparse nor Path is imported, because their imports would add to the time.
_FIRST_ANSWER = """
import sys
import numpy
path, input = sys.argv[1:]
x = numpy.fromfile(input, "float32").reshape(1, -1)
{body}
print(*y.ravel())
with open("/proc/self/status") as file:
    print(*(line.split()[1] for line in file if line.startswith("VmHWM:")))
"""


def measure(
    environments: Mapping[str, Environment], model: Shipped, options: argparse.Namespace
) -> dict[str, Any]:
    """Return `cases`, the times of importing a runtime after NumPy and of whole processes that
    answer once; `memory`, the median of the peak resident bytes of such a process; and `numpy`, the
    median seconds of a process that imports only NumPy.

    The answers are compared before anything is timed. Each round starts a process of each kind, one
    after another.
    """
    threads, rounds = options.threads, options.rounds
    outputs = {}
    for name, environment in environments.items():
        _output(environment, _import_script(name), threads)  # fills the page cache
        outputs[name], _ = _answer(environment, name, model, threads)
    check_agreement({"the model in float64": [model.answer.ravel()], **outputs})
    imports = {name: Result(name, []) for name in environments}
    firsts = {name: Result(name, outputs[name]) for name in environments}
    numpy, memory = Result(NUMPY, []), {name: list[int]() for name in environments}

    def time_import(name: str) -> None:
        text = _output(environments[name], _import_script(name), threads)
        imports[name].seconds.append(float(text))

    def time_first(name: str) -> None:
        start = time.perf_counter()
        _, most = _answer(environments[name], name, model, threads)
        firsts[name].seconds.append(time.perf_counter() - start)
        memory[name].append(most)

    def time_numpy(name: str) -> None:
        start = time.perf_counter()
        _output(environments[name], _NUMPY, threads)
        numpy.seconds.append(time.perf_counter() - start)

    kinds = [(way, name) for name in environments for way in (time_import, time_first)]
    kinds.append((time_numpy, OURS))
    with terminal.progress() as bar:
        title = "starts of processes"
        for way, name in contests.alternating(
            kinds, rounds, lambda number: bar(number, rounds, title)
        ):
            way(name)
    for result in (*imports.values(), *firsts.values()):
        result.calls = rounds
    return {
        "cases": [
            contests.case_of(IMPORT, list(imports.values()), rounds),
            contests.case_of(FIRST, list(firsts.values()), rounds),
        ],
        "memory": {name: int(np.median(found)) for name, found in memory.items()},
        "numpy": numpy.median,
    }


def _import_script(name: str) -> str:
    return _TIMED_IMPORT.format(statement=_IMPORTS[name])


def _answer(
    environment: Environment, name: str, model: Shipped, threads: int
) -> tuple[list[np.ndarray], int]:
    """Start a process that answers once; return the answer and its peak resident bytes."""
    script = _FIRST_ANSWER.format(body=_ANSWERS[name].format(threads=threads))
    text = _output(environment, script, threads, str(model.files[name]), str(model.input))
    answer, most = text.splitlines()[-2:]
    return [np.array(answer.split(), "float32")], int(most) * 1024


def _output(environment: Environment, script: str, threads: int, *arguments: str) -> str:
    """Run a script in an environment; return its output."""
    command = [environment.python, "-I", "-c", script, *arguments]
    return output_of("a process that starts", command, thread_environment(threads))
