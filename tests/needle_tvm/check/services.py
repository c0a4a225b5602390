"""A stand-in for the processes of a campaign: programs end as their seeds say."""

import os
import signal
import time

DEADLY, SLOW, WRONG, REFUSED = 3, 5, 7, 9


def serve(request):
    seed = request.get("seed")
    if seed == DEADLY:
        os.kill(os.getpid(), signal.SIGSEGV)
    if seed == SLOW:
        time.sleep(60)
    verdict, what = "right", ""
    if seed == WRONG:
        verdict, what = "wrong", "output 0: 1 of 4 elements differ"
    if seed == REFUSED:
        verdict, what = "refused", f"TraceError: input {seed} of shape (2, 3) cannot be kept"
    where = "noopt, 1 thread" if what else ""
    return {"verdict": verdict, "where": where, "what": what, "ops": [], "steps": 0}
