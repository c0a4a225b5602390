"""Rows for the record store's tests, and a program that writes them until it is killed.

python record_writer.py STORE ACKNOWLEDGED WRITER COUNT

The writer is a tuning session with a budget of COUNT trials. Started again, it does the rest.
"""

import hashlib
import sys

from needle_tvm.tune.records import rows
from needle_tvm.tune.records.store import Store


def token(*parts):
    """Text that one row repeats and no other contains, so that each page of the row has it."""
    return f"<{'.'.join(str(part) for part in parts)}.>"


def make_workload(i, length=20_000):
    """(workload, module, key) number i."""
    mark = token("module", i)
    module = rows.Module(mark * (length // len(mark)))
    key = rows.KeyRow(rows.canonical({"target": {"kind": "llvm"}, "versions": {"tvm": "0.27"}}))
    return rows.Workload(str(i), rows.name(module), rows.name(key)), module, key


def make_record(workload, *parts, seconds=1e-3, length=2000):
    """A record of the workload, with a trace that repeats `parts`."""
    mark = token("record", *parts)
    trace = [mark * (length // len(mark))]
    return rows.measurement(workload, trace, [seconds], [], measured_at="t", host=str(parts))


SPENT = 0.25  # seconds that each trial takes of its session's budget


def session_of(writer):
    """The name of a writer's session."""
    return hashlib.sha256(str(writer).encode()).hexdigest()


def make_trial(writer, i, spent=SPENT, length=2000):
    """(workload, module, key, record, verdicts, trials) of trial number i of a writer.

    Every third trial was measured, every third gated, and every third did not run. Three successive
    trials share a workload, of which there are three.
    """
    workload, module, key = make_workload(i // 3 % 3)
    record = make_record(workload, writer, i, seconds=1e-3 * (i + 1), length=length)
    said = {1: (rows.GATED, ""), 2: (rows.REJECTED, "crash: ended by SIGSEGV")}.get(i % 3)
    if i % 3 == 2:
        trace = [token("record", writer, i)]
        record = rows.measurement(workload, trace, None, None, measured_at="t", host=str(i))
    name = rows.name(record)
    verdicts = []
    if said is not None:
        verdicts.append(rows.Verdict(name, said[0], "t", "here", token("verdict", i) + said[1]))
    trials = [rows.Trial(session_of(writer), name, spent, rows.SOURCES[i % 3])]
    return workload, module, key, record, verdicts, trials


def add_trial(store, *parts, **options):
    """Write one trial and return its record."""
    workload, module, key, record, verdicts, trials = make_trial(*parts, **options)
    of = {"workload": workload, "module": module, "key": key}
    store.add([record], **of, verdicts=verdicts, trials=trials)
    return record


def main(path, acknowledged, writer, count):
    with Store(path) as store, open(acknowledged, "ab", buffering=0) as told:
        for i in range(store.spent(session_of(writer))[0], int(count)):
            record = add_trial(store, writer, i)
            told.write(f"{rows.name(record)} {writer} {i}\n".encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
