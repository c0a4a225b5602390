"""The search's services, with a fault in every second candidate; see test_tuning_faults.

A candidate's number is its library's name; 0 is the rule's. The environment gives the last faulty
number, so that the search's final builds are left alone.
"""

import os
from pathlib import Path

from needle_tvm._tvm.names import tvm
from needle_tvm.tune.measure import services
from tests.needle_tvm.tune.measure.faulty_services import (
    abort,
    hang,
    hang_holding_the_gil,
    stop_itself,
)

LAST = "NEEDLE_TEST_LAST_FAULTY"


def serve(request):
    kind = fault(request)
    if kind is not None and request["do"] == PLANTED[kind][0]:
        request = PLANTED[kind][1](request) or request
    return services.serve(request)


def fault(request):
    """The kind of fault of the candidate in a request, or None."""
    number = int(Path(request["path"]).stem) if "path" in request else 0
    if number % 2 == 0 or number > int(os.environ[LAST]):
        return None
    return list(PLANTED)[number // 2 % len(PLANTED)]


def eat_memory(request):
    kept = []
    while True:
        kept.append(b"x" * (64 << 20))


def complain(request):
    raise RuntimeError("no such instruction")


def wrong(request):
    """Change the epilogue."""
    return changed(request, "T.max(T.float32(0.0)", "T.max(T.float32(0.01)")


def nan(request):
    """Start sums at NaN."""
    return changed(request, "] = T.float32(0.0)", '] = T.float32("nan")')


def changed(request, old, new):
    script = tvm.ir.load_json(request["module"]).script()
    assert old in script, script
    module = tvm.script.from_source(script.replace(old, new))
    return {**request, "module": tvm.ir.save_json(module)}


# By fault: the request it strikes, the function that causes it, and the trial's expected outcome.
PLANTED = {
    "abort": ("measure", abort, "crash"),
    "hang": ("measure", hang, "timeout"),
    "hang holding the GIL": ("build", hang_holding_the_gil, "timeout"),
    "stopped": ("measure", stop_itself, "timeout"),
    "memory": ("build", eat_memory, "memory"),
    "error": ("build", complain, "error"),
    "wrong": ("build", wrong, "wrong"),
    "nan": ("build", nan, "wrong"),
}
