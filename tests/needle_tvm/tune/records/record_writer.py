"""Lines for the record store's tests, and a program that writes them until it is killed.

python record_writer.py STORE ACKNOWLEDGED WRITER COUNT

The writer is a tuning session with a budget of COUNT trials. Started again, it does the rest.
"""

import hashlib
import sys

from needle_tvm.tune.records import facts
from needle_tvm.tune.records.store import Store

KEY = facts.canonical({"target": {"kind": "llvm"}, "versions": {"tvm": "0.27"}})
CRASH = "crash: ended by SIGSEGV"
SPENT = 0.25  # seconds that each trial takes of its session's budget


def token(*parts):
    """Text that one line repeats and no other contains."""
    return f"<{'.'.join(str(part) for part in parts)}.>"


def make_kernel(i, length=20_000):
    """Kernel number i."""
    mark = token("module", i)
    return facts.Kernel(str(i), KEY, mark * (length // len(mark)))


def session_of(writer):
    """The name of a writer's session."""
    return hashlib.sha256(str(writer).encode()).hexdigest()


def make_trial(kernel, *parts, seconds=1e-3, rejected="", length=2000):
    """A trial of a kernel, with a trace that repeats `parts`, paid by the session of the first."""
    mark = token("trial", *parts)
    return facts.Trial(
        kernel=facts.name(kernel),
        trace=facts.canonical([mark * (length // len(mark))]),
        run_secs=facts.canonical(None if rejected else [seconds]),
        args_info="[]",
        rejected=rejected,
        session=session_of(parts[0]),
        spent=SPENT,
        measured_at="t",
        host=str(parts),
    )


def numbered(writer, i, length=2000):
    """(kernel, trial number i of a writer). Three successive trials share a kernel, of which there
    are three, and every third trial crashed."""
    kernel = make_kernel(i // 3 % 3)
    rejected = CRASH if i % 3 == 2 else ""
    seconds = 1e-3 * (i + 1)
    return kernel, make_trial(kernel, writer, i, seconds=seconds, rejected=rejected, length=length)


def add_numbered(store, writer, i, **options):
    """Write one of these trials and return its name."""
    kernel, trial = numbered(writer, i, **options)
    return store.add(trial, kernel)


def main(path, acknowledged, writer, count):
    with Store(path) as store, open(acknowledged, "ab", buffering=0) as told:
        for i in range(store.spent(session_of(writer))[0], int(count)):
            told.write(f"{add_numbered(store, writer, i)} {writer} {i}\n".encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
