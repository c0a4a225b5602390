"""Check and time the rungs of a ladder: python -m kernel_lab WORKLOAD -d DEVICE.

`python -m kernel_lab check 3` checks the exercises of a lesson.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from kernel_lab import registry
from kernel_lab.run import Request, check_arch, run
from kernel_lab.workload import DEVICES, Case, describe
from needle_runtime.process.command_line import (
    FAILED,
    OK,
    Parser,
    check_writable,
    guarded,
    natural,
    positive,
)
from needle_tvm.terminal import console, progress

_PROGRAM = "python -m kernel_lab"


def _assignments(text: str) -> dict[str, str]:
    """Parse "M=512,N=256" into a dict of strings; the workload validates names and values."""
    found: dict[str, str] = {}
    for part in text.split(","):
        name, separator, value = (piece.strip() for piece in part.partition("="))
        if name in found:
            raise argparse.ArgumentTypeError(f"{text!r}: {name} is given twice")
        if not separator or not name or not value:
            raise argparse.ArgumentTypeError(f"{text!r}: must be like M=512,N=256")
        found[name] = value
    return found


def _sweep(text: str) -> tuple[str, list[str]]:
    """Parse "M=256,512" into ("M", ["256", "512"])."""
    name, separator, values = text.partition("=")
    if not separator or not name.strip() or not all(v.strip() for v in values.split(",")):
        raise argparse.ArgumentTypeError(f"{text!r}: must be like M=256,512,1024")
    return name.strip(), [value.strip() for value in values.split(",")]


def make_parser() -> Parser:
    parser = Parser(prog=_PROGRAM, description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("workload", nargs="?", help=", ".join(registry.WORKLOADS))
    add("-d", "--device", choices=DEVICES, default="cpu", help="where it runs (%(default)s)")
    add("--rungs", metavar="LIST", help="comma-separated rungs to run (all)")
    size = "dimensions; missing dimensions come from the first size of --list"
    add("--size", type=_assignments, default={}, metavar="M=..,N=..", help=size)
    add("--trials", type=natural, default=0, metavar="N", help="trials per search (%(default)s)")
    add("--peers", action="store_true", help="also time NumPy and PyTorch")
    add("--sweep", type=_sweep, metavar="M=..,..", help="also time the ladder over sizes")
    add("--rounds", type=positive, default=7, metavar="N", help="timed blocks each (%(default)s)")
    untimed = "time nothing; compile and trace GPU ladders, which needs no GPU"
    add("--untimed", action="store_true", help=untimed)
    arch = "with --untimed, compile GPU code for this architecture (this GPU's, or sm_90)"
    add("--arch", metavar="sm_75", help=arch)
    diff = "print a rung's changes in the TVMScript, at a small size unless --size gives one"
    add("--diff", metavar="RUNG", help=diff)
    add("--report", type=Path, metavar="DIR", help="write an HTML report to this folder")
    add("--json", metavar="FILE", help="write the result as JSON; - is stdout")
    add("--list", action="store_true", help="list workloads and rungs, run nothing")
    add("-q", "--quiet", action="store_true", help="print errors only")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["check"]:
        return _check(arguments[1:])
    parser = make_parser()
    options = parser.parse_args(arguments)

    def chosen() -> int:
        if options.list:
            return _list(options)
        if options.workload is None:
            parser.error(f"name a workload: {', '.join(registry.WORKLOADS)}")
        if options.diff:
            return _diff(parser, options)
        if options.untimed and (options.peers or options.sweep or options.trials):
            parser.error("--untimed times nothing: leave out --peers, --sweep and --trials")
        return _run(options)

    return guarded(_PROGRAM, chosen)


def make_check_parser() -> Parser:
    parser = Parser(
        prog=f"{_PROGRAM} check", description="Check exercises of the course.", allow_abbrev=False
    )
    parser.add_argument(
        "exercise", metavar="N", help="a lesson, such as 3, or an exercise, such as 3.1"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        metavar="DIR",
        help="the folder of the exercises, such as your own copy (default: that of the clone)",
    )
    return parser


def _check(arguments: Sequence[str]) -> int:
    options = make_check_parser().parse_args(arguments)

    def judged() -> int:
        from kernel_lab.exercises import EXERCISES, RIGHT, check, find

        folder = options.folder.resolve() if options.folder else EXERCISES
        states = []
        for path in find(options.exercise, folder):
            verdict = check(path)
            sys.stdout.write(f"{verdict}\n")
            sys.stdout.flush()
            states.append(verdict.state)
        return OK if set(states) == {RIGHT} else FAILED

    return guarded(_PROGRAM, judged)


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
                summary = " ".join(rung.reason.partition("\n\n")[0].split())
                lines.append(f"    {rung.name} [{kind}] {summary}")
    sys.stdout.write("\n".join(lines) + "\n")
    return OK


def _diff(parser: Parser, options: argparse.Namespace) -> int:
    also = ("rungs", "trials", "peers", "sweep", "untimed", "report", "json")
    given = [f"--{name}" for name in also if getattr(options, name)]
    if given:
        parser.error(f"--diff runs nothing: leave out {', '.join(given)}")
    check_arch(Request(options.workload, options.device, timed=False, arch=options.arch))
    ladder = registry.ladder(options.workload, options.device)
    size = ladder.workload.size(options.device, options.size)
    from kernel_lab import build
    from kernel_lab.rung_diff import rung_diff

    case = Case(size, build.processor(build.make_target(options.device, options.arch)))
    sys.stdout.write(rung_diff(ladder, options.diff, case, small=not options.size).text)
    return OK


def _run(options: argparse.Namespace) -> int:
    to_stdout = options.json == "-"
    if options.json and not to_stdout:
        check_writable(Path(options.json))
    if options.report:
        from kernel_lab import report

        check_writable(options.report / "index.html")
        report.check_place(options.report)
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
        arch=options.arch,
        # Compiling and tracing take a minute; with only --quiet, nobody would see the figures.
        static=options.untimed and bool(not options.quiet or options.json or options.report),
    )
    from kernel_lab.table import print_result

    # With `--json -`, stdout holds only the JSON object.
    screen = console(stderr=to_stdout, quiet=options.quiet)
    with progress(options.quiet) as say:
        result = run(request, say)
    print_result(result, screen)
    text = json.dumps(result.to_dict(), indent=2, allow_nan=False) + "\n"
    if to_stdout:
        sys.stdout.write(text)
        sys.stdout.flush()
    elif options.json:
        path = Path(options.json)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        screen.print(f"wrote {path}")
    if options.report:
        report.write(result, options.report)
        screen.print(f"wrote {options.report}")
    return OK
