"""The search's services, with every second candidate planted with a fault: see test_tuning_faults.

Candidates are numbered by their library's name; 0 is the rule's. The last faulty number is told by
the environment, so that what the search builds when it is done is left alone.
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
    """The kind of fault of the candidate in a request, if any."""
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
    """Another epilogue."""
    return changed(request, "T.max(T.float32(0.0)", "T.max(T.float32(0.01)")


def nan(request):
    """Sums that begin at NaN."""
    return changed(request, "] = T.float32(0.0)", '] = T.float32("nan")')


def changed(request, old, new):
    script = tvm.ir.load_json(request["module"]).script()
    assert old in script, script
    module = tvm.script.from_source(script.replace(old, new))
    return {**request, "module": tvm.ir.save_json(module)}


# By fault: when it strikes, how, and what the trial must be called.
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
