"""Rows for the record store's tests, and a process that writes them until it is killed.

python record_writer.py STORE ACKNOWLEDGED WRITER COUNT
"""

import sys

from needle_tvm.records import rows
from needle_tvm.records.store import Store


def token(*parts):
    """Text that stands in one row only, often: any page with a piece of the row contains it."""
    return f"<{'.'.join(str(part) for part in parts)}.>"


def make_workload(i, length=20_000):
    """(workload, module, key) number i."""
    mark = token("module", i)
    module = rows.Module(mark * (length // len(mark)))
    key = rows.KeyRow(rows.canonical({"target": {"kind": "llvm"}, "versions": {"tvm": "0.27"}}))
    return rows.Workload(str(i), rows.name(module), rows.name(key)), module, key


def make_record(workload, *parts, seconds=1e-3, length=2000):
    """A record of the workload; its trace says `parts` all over."""
    mark = token("record", *parts)
    trace = [mark * (length // len(mark))]
    return rows.measurement(workload, trace, [seconds], [], measured_at="t", host=str(parts))


def main(path, acknowledged, writer, count):
    of = [make_workload(i) for i in range(3)]
    with Store(path) as store, open(acknowledged, "ab", buffering=0) as told:
        for i in range(int(count)):
            workload, module, key = of[i % len(of)]
            record = make_record(workload, writer, i)
            store.add([record], workload=workload, module=module, key=key)
            told.write(f"{rows.name(record)} {workload.structural_hash} {writer} {i}\n".encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
