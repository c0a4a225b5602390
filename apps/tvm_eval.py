"""Compile a model at every stage, check it against the eager model, and time them all."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__":  # a script finds modules beside it, not its own package
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from apps import models
from needle_runtime.errors import UsageError
from needle_runtime.process import command_line as cli
from needle_runtime.target.precision import FLOAT32, PRECISIONS
from needle_tvm import terminal
from needle_tvm.stages import OWN, PRODUCTS, STAGES

DEVICES = ("cpu", "cuda")


def stage_names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in STAGES:
            raise argparse.ArgumentTypeError(f"unknown stage {name!r}: must be {', '.join(STAGES)}")
    return tuple(stage for stage in STAGES if stage in names)


def model_name(text: str) -> str:
    try:
        models.find(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def make_parser() -> argparse.ArgumentParser:
    parser = cli.Parser(prog="tvm_eval.py", description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add(
        "-m",
        "--model",
        type=model_name,
        default="mlp",
        metavar="MODEL",
        help=f"{', '.join(models.MODELS)}, FILE.onnx, or FILE.py:function that returns "
        "(model, inputs)",
    )
    add("-d", "--device", choices=DEVICES, default="cpu", help="device to run on (%(default)s)")
    add(
        "--dtype",
        choices=PRECISIONS,
        help="dtype of the operands of products; stage noopt always uses float32 (float32)",
    )
    add(
        "--products",
        choices=PRODUCTS,
        default=OWN,
        help="kernels for matrix products on a GPU at stage tuned: needle's own, cuBLAS, or for "
        "each product the faster of the two, measured on this machine (%(default)s)",
    )
    add("-r", "--recompile", action="store_true", help="compile even if the cache has the code")
    add(
        "--no-check",
        dest="check",
        action="store_false",
        help="do not compare the compiled code with the model",
    )
    steps = parser.add_mutually_exclusive_group()
    steps.add_argument(
        "--stages",
        type=stage_names,
        default=STAGES,
        metavar="LIST",
        help=f"comma-separated, of {','.join(STAGES)} (all)",
    )
    steps.add_argument(
        "--ladder",
        action="store_true",
        help="instead of stages, compile the rungs up to the last stage; each rung adds a step",
    )
    add(
        "--trials",
        type=cli.natural,
        default=0,
        metavar="N",
        help="candidates that a search tries, over all kernels together, for stage tuned or for a "
        "separate rung on the ladder (%(default)s)",
    )
    add("--minutes", type=cli.minutes, metavar="M", help="time limit of the search (none)")
    add(
        "--cluster",
        metavar="ADDRESS",
        help="measure candidates on the workers of this Dask scheduler, such as "
        "tcp://192.0.2.10:8786",
    )
    add("--batch", type=cli.positive, metavar="N", help="samples in the input (the model's own)")
    add("--weights", type=Path, metavar="FILE", help="safetensors file to take the weights from")
    add("--threads", type=cli.positive, metavar="N", help="CPU threads (every available core)")
    add("--peers", action="store_true", help="also time PyTorch and ONNX Runtime")
    add(
        "--rounds",
        type=cli.repeats,
        default=10,
        metavar="N",
        help="timed blocks of each contestant (%(default)s)",
    )
    add(
        "--out",
        type=Path,
        default=Path("out"),
        metavar="DIR",
        help="folder for MODEL-DEVICE[-DTYPE][-PRODUCTS][-ladder].json and .png (%(default)s)",
    )
    add("--json", metavar="FILE", help="also write the JSON here; - is stdout")
    add("--dump-ir", type=Path, metavar="DIR", help="write every stage's module as text")
    volume = parser.add_mutually_exclusive_group()
    volume.add_argument("-v", "--verbose", action="count", default=0, help="log more (-vv: all)")
    volume.add_argument("-q", "--quiet", action="store_true", help="print errors only")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    options = make_parser().parse_args(arguments)
    levels = (logging.WARNING, logging.INFO, logging.DEBUG)
    logging.basicConfig(level=levels[min(options.verbose, 2)], format="%(name)s: %(message)s")
    if options.verbose < 2:  # matplotlib warns when it first builds its font cache
        logging.getLogger("matplotlib").setLevel(logging.ERROR)
    return cli.guarded("tvm_eval.py", lambda: run(options), debug=options.verbose > 1)


def check_search(options: argparse.Namespace) -> None:
    """Raise UsageError, before any work is done, if the requested search is impossible."""
    searches = options.trials or options.minutes is not None
    if options.cluster is not None and not searches:
        raise UsageError("--cluster needs a search: add --trials or --minutes")
    if searches and STAGES[-1] not in options.stages:
        raise UsageError(
            f"--trials and --minutes are for stage {STAGES[-1]!r}, which --stages omits"
        )


def check_products(options: argparse.Namespace) -> None:
    """Raise UsageError, before any stage is built, if no requested stage uses these options."""
    if options.products != OWN:
        if options.device != "cuda":
            raise UsageError(f"--products {options.products} needs a GPU: add -d cuda")
        if STAGES[-1] not in options.stages:
            raise UsageError(f"--products is for stage {STAGES[-1]!r}, which --stages omits")
    if options.dtype not in (None, FLOAT32):
        if options.dtype == "tf32" and options.device != "cuda":
            raise UsageError("--dtype tf32 needs a GPU: add -d cuda")
        if set(options.stages) == {STAGES[0]}:
            raise UsageError(f"--dtype is for the stages after {STAGES[0]!r}, which --stages omits")


def run(options: argparse.Namespace) -> int:
    """Evaluate the model and write the requested outputs."""
    check_search(options)
    check_products(options)
    to_stdout = options.json == "-"
    files = [Path(options.json)] if options.json and not to_stdout else []
    for path in files:
        cli.check_writable(path)
    for path in filter(None, (options.out, options.dump_ir)):
        cli.check_writable(path, folder=True)
    if options.threads is not None:
        # This must come before importing anything that starts threads.
        from needle_runtime.process.threads import thread_environment

        os.environ.update(thread_environment(options.threads))
    from apps import evaluation, report

    # With `--json -`, stdout carries the JSON object alone.
    console = terminal.console(stderr=to_stdout, quiet=options.quiet)
    fields = evaluation.Request.__dataclass_fields__
    request = evaluation.Request(**{name: getattr(options, name) for name in fields})
    with terminal.progress(options.quiet) as progress:
        result = evaluation.evaluate(request, progress)

    report.print_table(result, console)
    name = f"{Path(options.model.partition(':')[0]).stem}-{options.device}"
    name += f"-{options.dtype}" if options.dtype else ""
    name += f"-{options.products}" if options.products != OWN else ""
    name += "-ladder" if options.ladder else ""
    written = [options.out / f"{name}.json"]
    report.write_json(result, written[0])
    if "timing" in result:
        written.append(options.out / f"{name}.png")
        report.draw_chart(result, written[1])
    for path in files:
        report.write_json(result, path)
    if to_stdout:
        sys.stdout.write(report.to_json(result))
        sys.stdout.flush()
    console.print(f"wrote {', '.join(map(str, written + files))}")
    return cli.OK if result["ok"] else cli.FAILED


if __name__ == "__main__":
    sys.exit(main())
