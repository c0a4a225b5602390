"""`python -m needle_tvm records list|show|merge`."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from needle_runtime.errors import UsageError
from needle_runtime.process.command_line import OK
from needle_runtime.text import counted, one_line, printable
from needle_tvm.tune.records.facts import Kernel, Rejection, Trial
from needle_tvm.tune.records.store import Store, default_path

_SHOWN = 12  # characters of a name that are shown; commands accept any unique prefix


def add_parser(subparsers: Any) -> None:
    """Add `records` and its commands."""
    parser = subparsers.add_parser("records", help="list, show or merge tuning measurements")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, run: Callable[[argparse.Namespace], int], text: str) -> Any:
        added = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        added.add_argument(
            "--store", type=Path, metavar="DIR", help="the store (default: the one in the cache)"
        )
        added.add_argument("--json", action="store_true", help="print one JSON object instead")
        added.set_defaults(command=run)
        return added.add_argument

    command("list", _list, "List the kernels and the number of trials of each.")
    add = command("show", _show, "Show one trial or kernel.")
    add("name", metavar="NAME", help="a trial's or kernel's name, or the first digits of it")
    add = command("merge", _merge, "Copy the records that this store lacks from other stores.")
    add("others", nargs="+", type=Path, metavar="DIR", help="another store")


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
    """Return the keys and kernels of a store, the number of trials of each, and the sessions."""
    kernels, trials = store.all(Kernel), store.all(Trial)
    keys = sorted({kernel.key for kernel in kernels.values()})
    sessions = sorted({trial.session for trial in trials.values()})
    spent = {session: store.spent(session) for session in sessions}
    return {
        "keys": [json.loads(key) for key in keys],
        "kernels": [
            _kernel(store, name) | {"key": keys.index(kernel.key)}
            for name, kernel in kernels.items()
        ],
        "orphaned_trials": sum(trial.kernel not in kernels for trial in trials.values()),
        "sessions": {name: {"trials": n, "seconds": s} for name, (n, s) in spent.items()},
    }


def _kernel(store: Store, name: str) -> dict[str, Any]:
    trials = store.of([name])
    rejected = sum(bool(store.rejected(trial)) for trial in trials)
    return {
        "kernel": name,
        "arguments": next((_arguments(trial) for trial in trials.values()), None),
        "right": len(trials) - rejected,
        "rejected": rejected,
        "best_seconds": next((trial.seconds for _, trial in store.best([name], 1)), None),
    }


def _arguments(trial: Trial) -> str | None:
    """Return the types of a kernel's arguments, as "float32(8, 512) float32(512)"."""
    parts = []
    for info in json.loads(trial.args_info) or []:
        if not isinstance(info, list) or len(info) != 3:
            return None
        parts.append(f"{info[1]}({', '.join(str(extent) for extent in info[2])})")
    return " ".join(parts) or None


def _list_lines(result: dict[str, Any]) -> Iterator[str]:
    yield f"{result['store']}: {counted(len(result['kernels']), 'kernel')}"
    for number, key in enumerate(result["keys"]):
        versions = ", ".join(f"{part} {version}" for part, version in key["versions"].items())
        yield f"{_target(key['target'])}; {versions}"
        for kernel in result["kernels"]:
            if kernel["key"] == number:
                yield (
                    f"  {kernel['kernel'][:_SHOWN]}  {kernel['right']} right, "
                    f"{kernel['rejected']} rejected; best {_time(kernel['best_seconds'])}  "
                    f"{kernel['arguments'] or ''}"
                ).rstrip()
    if result["orphaned_trials"]:
        yield f"{counted(result['orphaned_trials'], 'trial')} of kernels that are missing here"
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
        if kind is Trial:
            trial = store.all(Trial)[name]
            later = [r for r in store.all(Rejection).values() if r.trial == name]
            result = {
                "trial": name,
                **vars(trial),
                "arguments": _arguments(trial),
                "run_secs": json.loads(trial.run_secs),
                "trace": json.loads(trial.trace),
                "rejections": [vars(rejection) for rejection in later],
            }
            del result["args_info"]
        else:
            trials = sorted(store.of([name]).items(), key=lambda item: _order(item[1]))
            result = {
                **_kernel(store, name),
                "key": json.loads(store.all(Kernel)[name].key),
                "trials": [
                    {"trial": n, "rejected": store.rejected(n), "seconds": trial.seconds}
                    for n, trial in trials
                ],
            }
    _print(options, result, _show_lines(result))
    return OK


def _order(trial: Trial) -> tuple[bool, float]:
    """Return a sort key: the fastest first, candidates that did not run last."""
    return trial.seconds is None, trial.seconds or 0.0


def _show_lines(result: dict[str, Any]) -> Iterator[str]:
    for name, value in result.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            yield f"{name}:"
            for item in value:
                seconds = {"seconds": _time(item["seconds"])} if "seconds" in item else {}
                yield "  " + "  ".join(str(part) for part in {**item, **seconds}.values())
        else:
            yield f"{name}: {value if isinstance(value, str) else json.dumps(value)}"


def _found(store: Store, beginning: str) -> tuple[type[Trial] | type[Kernel], str]:
    """Return the kind and name of the only trial or kernel whose name begins with `beginning`."""
    if not re.fullmatch("[0-9a-f]{4,64}", beginning):
        raise UsageError(f"{beginning!r}: must be at least 4 hex digits of a name")
    kinds: tuple[type[Trial] | type[Kernel], ...] = (Trial, Kernel)
    names = [
        (kind, name) for kind in kinds for name in store.all(kind) if name.startswith(beginning)
    ]
    if len(names) != 1:
        many = f"{len(names)} names begin" if names else "no trial or kernel begins"
        raise UsageError(f"{beginning}: {many} with this")
    return names[0]


def _merge(options: argparse.Namespace) -> int:
    counts: Counter[str] = Counter()
    with Store(options.store or default_path(), report=_say) as store:
        for path in options.others:
            with Store(path, create=False, report=_say) as other:
                counts.update(store.merge(other))
        result = {"store": str(store.path), "new": dict(counts)}
    new = [counted(counts[kind], f"new {kind}") for kind in (Trial.kind, Kernel.kind)]
    _print(options, result, iter([f"{result['store']}: {', '.join(new)}"]))
    return OK
