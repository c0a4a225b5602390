"""`python -m needle_tvm records list|show|merge|prune`."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from needle_tvm.errors import UsageError
from needle_tvm.process.command_line import OK, natural
from needle_tvm.text import counted, one_line, printable
from needle_tvm.tune.records.old import read_old
from needle_tvm.tune.records.rows import (
    GATED,
    MEASURED,
    REJECTED,
    STATES,
    KeyRow,
    Record,
    Trial,
    Verdict,
    Workload,
    strongest,
)
from needle_tvm.tune.records.store import OLD_FILE, Store, default_path

_SHOWN = 12  # characters of a name that are shown; any unique prefix is understood


def add_parser(subparsers: Any) -> None:
    """Add `records` and its commands."""
    parser = subparsers.add_parser("records", help="what tuning measured: list, show, merge, prune")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, run: Callable[[argparse.Namespace], int], text: str) -> Any:
        added = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        added.add_argument(
            "--store", type=Path, metavar="DIR", help="the store (the one in needle's cache)"
        )
        added.add_argument("--json", action="store_true", help="print one JSON object instead")
        added.set_defaults(command=run)
        return added.add_argument

    command("list", _list, "List the workloads and how many records there are of each.")
    add = command("show", _show, "Show one record or workload.")
    add("name", metavar="NAME", help="of a record or workload, or its beginning")
    add = command("merge", _merge, "Take what other stores have and this one has not.")
    add(
        "others",
        nargs="+",
        type=Path,
        metavar="DIR",
        help=f"another store, or the {OLD_FILE} of an older needle's",
    )
    add = command("prune", _prune, "Forget records. What several options name is all forgotten.")
    add("--best", type=natural, metavar="N", help="of each workload, all but the N fastest")
    add("--rejected", action="store_true", help="those that failed the numerics gate")
    add("--failed", action="store_true", help="those of candidates that did not run")
    add(
        "--older-than",
        type=_version,
        metavar="NAME=VERSION",
        help="those of an older tvm, tvm_ffi, llvm or cuda, as in tvm=0.27",
    )
    add("--dry-run", action="store_true", help="only say how many")


def _opened(options: argparse.Namespace) -> Store:
    return Store(options.store or default_path(), create=False, report=_say)


def _say(line: str) -> None:
    sys.stderr.write(f"needle_tvm: warning: {one_line(line)}\n")


def _print(options: argparse.Namespace, result: dict[str, Any], lines: Iterator[str]) -> None:
    if options.json:
        sys.stdout.write(json.dumps(result, indent=2) + "\n")
    else:
        sys.stdout.writelines(f"{printable(line)}\n" for line in lines)
    sys.stdout.flush()


def _list(options: argparse.Namespace) -> int:
    with _opened(options) as store:
        result = {"store": str(store.path), **_contents(store)}
    _print(options, result, _list_lines(result))
    return OK


def _contents(store: Store) -> dict[str, Any]:
    """The keys and workloads of a store, the number of records in each state, and the sessions."""
    workloads = store.all(Workload)
    found: dict[str, dict[str, Any]] = {
        name: {
            "workload": name,
            "key": workload.key,
            "arguments": None,
            "records": dict.fromkeys(STATES, 0),
            "failed": 0,
            "best_seconds": None,
            "best_gated_seconds": None,
        }
        for name, workload in workloads.items()
    }
    verdicts = _states(store)
    orphans = 0
    for name, record in store.all(Record).items():
        entry = found.get(record.workload)
        if entry is None:
            orphans += 1
            continue
        state = verdicts.get(name, MEASURED)
        entry["records"][state] += 1
        entry["arguments"] = entry["arguments"] or _arguments(record)
        if record.seconds is None:
            entry["failed"] += 1
        elif state != REJECTED:
            entry["best_seconds"] = min(record.seconds, entry["best_seconds"] or record.seconds)
            if state == GATED:
                best = entry["best_gated_seconds"]
                entry["best_gated_seconds"] = min(record.seconds, best or record.seconds)
    keys = {name: json.loads(key.text) for name, key in store.all(KeyRow).items()}
    sessions = sorted({trial.session for trial in store.all(Trial).values()})
    spent = {session: store.spent(session) for session in sessions}
    return {
        "keys": keys,
        "workloads": list(found.values()),
        "orphaned_records": orphans,
        "sessions": {name: {"trials": n, "seconds": s} for name, (n, s) in spent.items()},
    }


def _states(store: Store) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for verdict in store.all(Verdict).values():
        found.setdefault(verdict.record, []).append(verdict.state)
    return {record: strongest(states) for record, states in found.items()}


def _arguments(record: Record) -> str | None:
    """The types of a workload's arguments, as "float32(8, 512) float32(512)"."""
    parts = []
    for info in json.loads(record.args_info) or []:
        if not isinstance(info, list) or len(info) != 3:
            return None
        parts.append(f"{info[1]}({', '.join(str(extent) for extent in info[2])})")
    return " ".join(parts) or None


def _list_lines(result: dict[str, Any]) -> Iterator[str]:
    yield f"{result['store']}: {counted(len(result['workloads']), 'workload')}"
    for name, key in sorted(result["keys"].items()):
        versions = ", ".join(f"{part} {version}" for part, version in key["versions"].items())
        yield f"key {name[:_SHOWN]}: {_target(key['target'])}; {versions}"
        for entry in result["workloads"]:
            if entry["key"] == name:
                counts = ", ".join(f"{n} {state}" for state, n in entry["records"].items() if n)
                yield (
                    f"  {entry['workload'][:_SHOWN]}  {counts or 'no records'}; "
                    f"best {_time(entry['best_seconds'])}, "
                    f"gated {_time(entry['best_gated_seconds'])}  {entry['arguments'] or ''}"
                ).rstrip()
    if result["orphaned_records"]:
        yield f"{counted(result['orphaned_records'], 'record')} of workloads that are not here"
    for name, spent in result["sessions"].items():
        trials = counted(spent["trials"], "trial")
        yield f"session {name[:_SHOWN]}: {trials}, {spent['seconds']:.1f} s"


def _target(target: dict[str, Any]) -> str:
    parts = [target["kind"], target.get("arch") or target.get("mcpu"), target.get("num-cores")]
    return " ".join(str(part) for part in parts if part is not None)


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e6:.2f} us"


def _show(options: argparse.Namespace) -> int:
    with _opened(options) as store:
        kind, name = _found(store, options.name)
        row: Any = store.row(kind, name)
        result: dict[str, Any] = {kind.table[:-1]: name}
        if kind is Record:
            result |= {
                "workload": row.workload,
                "state": store.state(name),
                "seconds": row.seconds,
                "run_secs": json.loads(row.run_secs),
                "measured_at": row.measured_at,
                "host": row.host,
                "arguments": _arguments(row),
                "verdicts": [
                    {"state": v.state, "at": v.decided_at, "host": v.host, "detail": v.detail}
                    for v in store.all(Verdict, lambda verdict: verdict.record == name).values()
                ],
                "trials": [
                    {
                        "session": trial.session,
                        "source": trial.source,
                        "spent_seconds": trial.seconds,
                    }
                    for trial in store.all(Trial, lambda trial: trial.record == name).values()
                ],
                "trace": json.loads(row.trace),
            }
        else:
            key = store.row(KeyRow, row.key)
            records = store.all(Record, lambda record: record.workload == name)
            result |= {
                "structural_hash": row.structural_hash,
                "key": json.loads(key.text) if key is not None else None,
                "records": [
                    {"record": n, "state": store.state(n), "seconds": r.seconds}
                    for n, r in sorted(records.items(), key=lambda item: _order(item[1]))
                ],
            }
    _print(options, result, _show_lines(result))
    return OK


def _order(record: Record) -> tuple[bool, float]:
    """A sort key: the fastest first, candidates that did not run last."""
    return record.seconds is None, record.seconds or 0.0


def _show_lines(result: dict[str, Any]) -> Iterator[str]:
    for name, value in result.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            yield f"{name}:"
            for item in value:
                seconds = {"seconds": _time(item["seconds"])} if "seconds" in item else {}
                yield "  " + "  ".join(str(part) for part in {**item, **seconds}.values())
        else:
            yield f"{name}: {value if isinstance(value, str) else json.dumps(value)}"


def _found(store: Store, beginning: str) -> tuple[type[Record] | type[Workload], str]:
    """The kind and name of the one record or workload whose name begins so."""
    if not re.fullmatch("[0-9a-f]{4,64}", beginning):
        raise UsageError(f"{beginning!r}: must be at least 4 hex digits of a name")
    kinds: tuple[type[Record] | type[Workload], ...] = (Record, Workload)
    names = [
        (kind, name) for kind in kinds for name in store.all(kind) if name.startswith(beginning)
    ]
    if len(names) != 1:
        many = f"{len(names)} names begin" if names else "no record or workload begins"
        raise UsageError(f"{beginning}: {many} so")
    return names[0]


def _merge(options: argparse.Namespace) -> int:
    counts: Counter[str] = Counter()
    with Store(options.store or default_path(), report=_say, beside_old=True) as store:
        for path in options.others:
            if path.name == OLD_FILE:
                counts.update(store.take(read_old(path, _say)))
                continue
            with Store(path, create=False, report=_say) as other:
                counts.update(store.merge(other))
        result = {"store": str(store.path), "new": dict(counts)}
    new = [counted(counts[f"{noun}s"], f"new {noun}") for noun in ("record", "workload", "trial")]
    line = f"{result['store']}: {', '.join(new)}"
    _print(options, result, iter([line]))
    return OK


def _version(text: str) -> tuple[str, tuple[int, ...]]:
    name, separator, version = text.partition("=")
    if not separator or not name or not re.search(r"\d", version):
        raise argparse.ArgumentTypeError(f"{text!r}: must be like tvm=0.27")
    return name, _numbers(version)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version))


def _prune(options: argparse.Namespace) -> int:
    if options.best is None and not (options.rejected or options.failed or options.older_than):
        raise UsageError("say what to forget: --best N, --rejected, --failed or --older-than")
    with _opened(options) as store:
        counts = store.remove(_doomed(store, options), dry_run=options.dry_run)
        result = {"store": str(store.path), "removed": counts, "dry_run": options.dry_run}
    done = "would be forgotten" if options.dry_run else "forgotten"
    line = f"{result['store']}: {counted(counts['records'], 'record')} {done}"
    _print(options, result, iter([line]))
    return OK


def _doomed(store: Store, options: argparse.Namespace) -> list[str]:
    records, states, workloads = store.all(Record), _states(store), store.all(Workload)
    doomed: set[str] = set()
    if options.older_than:
        part, version = options.older_than
        found = {key: json.loads(row.text)["versions"] for key, row in store.all(KeyRow).items()}
        old = {
            key
            for key, versions in found.items()
            if part in versions and _numbers(versions[part]) < version
        }
        of_old = {name for name, workload in workloads.items() if workload.key in old}
        doomed |= {name for name, record in records.items() if record.workload in of_old}
    if options.rejected:
        doomed |= {name for name in records if states.get(name) == REJECTED}
    if options.failed:
        doomed |= {name for name, record in records.items() if record.seconds is None}
    if options.best is not None:
        of: dict[str, list[str]] = {}
        for name, record in records.items():
            if record.seconds is not None and states.get(name) != REJECTED:
                of.setdefault(record.workload, []).append(name)
        for names in of.values():
            # A gated record is worth more than a faster one that was not checked.
            names.sort(key=lambda n: (states.get(n) != GATED, records[n].seconds, n))
        kept = {name for names in of.values() for name in names[: options.best]}
        doomed |= set(records) - kept
    return sorted(doomed)
