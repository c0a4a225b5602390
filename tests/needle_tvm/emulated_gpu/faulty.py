"""The search's services on the emulated GPU, with faults in some candidates; see search_checks.

A candidate's number is its library's name; 0 is the rule's. A read or write far out of bounds ends
the process's context on a GPU, and the process here.
"""

import re
from pathlib import Path

from needle_tvm._tvm.names import tvm
from needle_tvm.tune.measure import services


def serve(request):
    number = int(Path(request["path"]).stem) if "path" in request else 0
    if request["do"] == "build" and number in FAULTS:
        request = {**request, "module": FAULTS[number][1](request["module"])}
    return services.serve(request)


def spilt(text, by):
    """Store every result a second time, `by` elements further on."""
    script = tvm.ir.load_json(text).script()
    stores = rf"^( *{RESULT}\[[^\n]*)\] = ([^\n]*)$"
    twice = rf"\1] = \2\n\1 + T.int64({by})] = \2"
    changed, count = re.subn(stores, twice, script, flags=re.MULTILINE)
    assert count, script
    return tvm.ir.save_json(tvm.script.from_source(changed))


RESULT, ELEMENTS = "T_maximum_intermediate", 8 * 32

# By number: how the trial must end, and the change to the module.
FAULTS = {
    1: ("crash", lambda text: spilt(text, 10**10)),
    2: ("wrong", lambda text: spilt(text, ELEMENTS)),
}
