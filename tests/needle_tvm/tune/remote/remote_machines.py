"""Trackers and servers as separate processes, and candidates to measure on them."""

import contextlib
import os
import queue
import subprocess
import sys
import threading

from needle_tvm._tvm.names import statements, te, tirx, tvm
from needle_tvm.tir.functions import module_of
from needle_tvm.tune.measure import steps as measure

COUNT = 1024
TARGET = {"kind": "llvm"}  # any processor of this machine's kind
START_SECONDS = 120


class Service:
    """`python -m needle_tvm tracker` or `server` as a process, with its lines of output."""

    def __init__(self, *arguments):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "needle_tvm", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "NEEDLE_NUM_THREADS": "1"},
        )
        self.said = []
        self._lines = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.address = self.wait_for("listening on").split("listening on ")[1].split(": ")[0]

    def _read(self):
        for line in self.process.stdout:
            self._lines.put(line.rstrip())
        self._lines.put(None)

    def wait_for(self, text):
        """The next line that has `text` in it."""
        while True:
            line = self._lines.get(timeout=START_SECONDS)
            if line is None:
                raise AssertionError(f"it ended: {self.process.communicate()[1]}")
            self.said.append(line)
            if text in line:
                return line

    @property
    def port(self):
        return self.address.rsplit(":", 1)[1]

    def stop(self):
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        self._reader.join()
        self.process.stdout.close()
        self.process.stderr.close()


class Machines(contextlib.ExitStack):
    """Services that end with the `with` block."""

    def start(self, *arguments):
        service = Service(*arguments)
        self.callback(service.stop)
        return service

    def tracker(self, port=0):
        return self.start("tracker", "--port", str(port))

    def servers(self, tracker, count, key="local"):
        """Start servers side by side, and return them once all are registered."""
        started = [self.server(tracker, key) for _ in range(count)]
        for service in started:
            service.wait_for("registered")
        return started

    def server(self, tracker, key="local"):
        return self.start("server", "--tracker", tracker.address, "--key", key)


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
    """A request for `measure.measure`."""
    return {"path": path, "gate": folder, "number": 3, "repeat": 2, "min_repeat_ms": 1, **more}
