"""A Dask scheduler and its workers as separate processes, and candidates to measure on them."""

import contextlib
import json
import os
import subprocess
import sys

from needle_tvm._tvm.names import host_cpu, statements, te, tirx, tvm
from needle_tvm.tir.functions import module_of
from needle_tvm.tune.measure import steps as measure
from tests.waiting import until

COUNT = 1024
TARGET = {"kind": "llvm", "mcpu": host_cpu(), "num-cores": 1}


class Machines(contextlib.ExitStack):
    """A scheduler and workers, started by Dask's own commands, that end with the `with` block."""

    def __init__(self, folder, *options, protocol="tcp"):
        super().__init__()
        self._options = options
        file = folder / "scheduler.json"
        where = ["--host", f"{protocol}://127.0.0.1", "--port", "0", "--scheduler-file", str(file)]
        self.scheduler = self._start("scheduler", *where, "--no-dashboard", *options)
        assert until(lambda: file.exists() and file.read_text())
        self.address = json.loads(file.read_text())["address"]

    def worker(self, *options, resources="needle=1", nanny=False):
        """Start a worker; with a nanny it would be started again after its death."""
        where = ["--nanny" if nanny else "--no-nanny", "--nthreads", "1", "--no-dashboard"]
        offered = ["--resources", resources] if resources else []
        return self._start("worker", self.address, *where, *offered, *self._options, *options)

    def _start(self, *arguments):
        process = subprocess.Popen(
            [sys.executable, "-m", "dask", *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "NEEDLE_NUM_THREADS": "2"},
        )
        self.callback(process.wait)
        self.callback(process.terminate)
        return process


def module(body=None, change=1.0, count=COUNT):
    """A module whose main(a, b) writes a + `change` to b, or runs the statements of `body` on b."""
    a = te.placeholder((count,), name="a")
    if body is None:
        b = te.compute((count,), lambda i: a[i] + tirx.const(change, "float32"), name="b")
    else:
        b = te.extern(
            [(count,)], [a], lambda ins, outs: statements(body), name="b", dtype="float32"
        )
    function = te.create_prim_func([a, b]).with_attr("global_symbol", "main")
    return tvm.ir.save_json(module_of(function))


def candidate(path, body=None, **change):
    """Build such a module's library and return its path."""
    measure.build({"module": module(body, **change), "target": TARGET, "path": str(path)})
    return str(path)


def calls(name, *arguments):
    """Statements that call a C function."""
    return lambda T: T.evaluate(T.call_extern("int32", name, *arguments))


def write_gate(folder):
    """A gate that a + 1 passes."""
    request = {"module": module(), "target": TARGET, "folder": str(folder), "seed": 0}
    measure.prepare(request)
    return str(folder)


def request(path, folder, **more):
    """A request for the service `measure`."""
    timing = {"number": 3, "repeat": 2, "min_repeat_ms": 1}
    return {"do": "measure", "path": path, "gate": folder, **timing, **more}
