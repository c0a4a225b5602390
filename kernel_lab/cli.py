"""The command line: `python -m kernel_lab WORKLOAD -d DEVICE`. A mistake is one line on stderr."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from kernel_lab import registry
from kernel_lab.errors import LabUsageError
from kernel_lab.run import Progress, Request, run
from kernel_lab.workload import DEVICES, describe
from needle_tvm.errors import NeedleTVMError, TargetError
from needle_tvm.timing import TimingError

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
_PROGRAM = "kernel_lab"


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"{self.prog}: error: {message}\n")


def _whole(least: int) -> Any:
    def whole(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is below {least}")
        return value

    return whole


def _assignments(text: str) -> dict[str, str]:
    """ "M=512,N=256" as a dict of texts; the workload judges names and values."""
    found: dict[str, str] = {}
    for part in text.split(","):
        name, separator, value = (piece.strip() for piece in part.partition("="))
        if not separator or not name or not value or name in found:
            raise argparse.ArgumentTypeError(f"{text!r}: must be like M=512,N=256")
        found[name] = value
    return found


def _sweep(text: str) -> tuple[str, list[str]]:
    """ "M=256,512" as ("M", ["256", "512"])."""
    name, separator, values = text.partition("=")
    if not separator or not name.strip() or not all(v.strip() for v in values.split(",")):
        raise argparse.ArgumentTypeError(f"{text!r}: must be like M=256,512,1024")
    return name.strip(), [value.strip() for value in values.split(",")]


def make_parser() -> argparse.ArgumentParser:
    parser = _Parser(prog=_PROGRAM, description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("workload", nargs="?", help=", ".join(registry.WORKLOADS))
    add("-d", "--device", choices=DEVICES, default="cpu", help="where it runs (%(default)s)")
    add("--rungs", metavar="LIST", help="comma-separated rungs to run (all)")
    add("--size", type=_assignments, default={}, metavar="M=..,N=..", help="(the documents')")
    add("--trials", type=_whole(0), default=0, metavar="N", help="of each search (%(default)s: no)")
    add("--peers", action="store_true", help="time NumPy and PyTorch beside the rungs")
    add("--sweep", type=_sweep, metavar="M=..,..", help="the ladder over sizes, too")
    add("--rounds", type=_whole(1), default=7, metavar="N", help="timed blocks each (%(default)s)")
    add("--untimed", action="store_true", help="time nothing; for GPU ladders where no GPU is")
    add("--report", type=Path, metavar="DIR", help="write an HTML report there")
    add("--json", metavar="FILE", help="write the result as JSON; - is stdout")
    add("--list", action="store_true", help="list workloads and rungs, run nothing")
    add("-q", "--quiet", action="store_true", help="print errors only")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        if options.list:
            return _list(options)
        if options.workload is None:
            parser.error(f"name a workload: {', '.join(registry.WORKLOADS)}")
        return _run(options)
    except KeyboardInterrupt:
        return _complain("interrupted", INTERRUPTED)
    except BrokenPipeError:  # the reader of our output has gone, as in `... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (LabUsageError, TargetError) as error:
        return _complain(error, USAGE)
    except (NeedleTVMError, TimingError, OSError) as error:
        return _complain(error, FAILED)
    finally:
        signal.signal(signal.SIGTERM, before)


def _complain(problem: object, code: int) -> int:
    if os.environ.get("NEEDLE_DEBUG"):
        traceback.print_exc()
    sys.stderr.write(f"{_PROGRAM}: error: {' '.join(str(problem).split())}\n")
    return code


def _terminate(number: int, frame: Any) -> NoReturn:
    raise SystemExit(128 + number)


def _list(options: argparse.Namespace) -> int:
    names = [options.workload] if options.workload else list(registry.WORKLOADS)
    lines = []
    for name in names:
        workload = registry.workload(name)
        lines.append(f"{name}: {workload.summary}")
        for device, sizes in workload.sizes.items():
            if (name, device) not in registry.LADDERS:
                continue
            shown = "; ".join(describe(size) for size in sizes)
            lines.append(f"  {device} ({shown})")
            for rung in registry.ladder(name, device).rungs:
                kind = (
                    rung.kind if rung.precision == "float32" else f"{rung.kind}, {rung.precision}"
                )
                kind += f", {rung.needs}" if rung.needs else ""
                lines.append(f"    {rung.name} [{kind}] {rung.reason.splitlines()[0]}")
    sys.stdout.write("\n".join(lines) + "\n")
    return OK


def _check_writable(path: Path) -> None:
    """Raises LabUsageError, before any work is done, when `path` could not be written later."""
    there = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if there != path and not there.is_dir():
        raise LabUsageError(f"{path}: {there} is not a folder")
    if not os.access(there, os.W_OK):
        raise LabUsageError(f"{path}: {there} is not writable")


def _run(options: argparse.Namespace) -> int:
    to_stdout = options.json == "-"
    if options.json and not to_stdout:
        _check_writable(Path(options.json))
    if options.report:
        _check_writable(options.report / "index.html")
    request = Request(
        workload=options.workload,
        device=options.device,
        size=options.size,
        rungs=[name.strip() for name in options.rungs.split(",")] if options.rungs else None,
        trials=options.trials,
        peers=options.peers,
        sweep=options.sweep,
        rounds=options.rounds,
        timed=not options.untimed,
    )
    from rich.console import Console

    from kernel_lab.table import print_result

    # With --json - the object has stdout to itself.
    console = Console(stderr=to_stdout, quiet=options.quiet)
    if not console.is_terminal:
        console.width = 120  # a file or a pipe has no width of its own to keep to
    with _progress(options.quiet) as progress:
        result = run(request, progress)
    print_result(result, console)
    text = json.dumps(result.to_dict(), indent=2, allow_nan=False) + "\n"
    if to_stdout:
        sys.stdout.write(text)
        sys.stdout.flush()
    elif options.json:
        path = Path(options.json)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        console.print(f"wrote {path}", highlight=False)
    if options.report:
        from kernel_lab import report

        report.write(result, options.report)
        console.print(f"wrote {options.report}", highlight=False)
    return OK


@contextmanager
def _progress(quiet: bool) -> Iterator[Progress]:
    """A bar on a terminal's stderr, one line for each new step elsewhere, nothing when quiet."""
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True, quiet=quiet)
    if not console.is_terminal:
        yield lambda done, total, text: console.print(text, highlight=False)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Bars(*columns, console=console, transient=True) as bars:
        task = bars.add_task("starting")
        yield lambda done, total, text: bars.update(
            task, completed=done, total=max(total, 1), description=text
        )
