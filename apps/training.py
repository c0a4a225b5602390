"""The training loop of the train_*.py scripts: steps, log, checkpoints, resuming.

A resumed run ends with the same weights, bit for bit, as a run that was never interrupted: the
checkpoint has every number that a step depends on, and the learning rate is a function of the step.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import needle as ndl
from needle_runtime.errors import EvaluationError, UsageError
from needle_runtime.process import command_line as cli
from needle_runtime.target import host
from needle_runtime.text import error_line
from needle_tvm import terminal

CHECKPOINT = ".checkpoint.safetensors"
_QUIET_SECONDS = 5.0  # minimum time between progress lines within an epoch


class Task:
    """Base of training tasks: set the attributes, define `loss` and `evaluate`.

    `loader` yields the batches of an epoch and has len, state_dict and load_state_dict. `carried`
    holds tensors, by name, that pass from one step to the next. `settings` are JSON values that
    must be equal on resuming.
    """

    model: Any
    optimizer: Any
    loader: Any
    device: Any
    settings: dict[str, Any]
    max_norm: float | None = None  # gradients are clipped to this norm
    warmup: float = 0.0  # share of the steps in which the learning rate rises
    carried: dict[str, Any]

    def loss(self, batch: Any) -> Any:
        """Return the loss of one batch, a 0-d Tensor."""
        raise NotImplementedError

    def begin_epoch(self) -> None:
        """Prepare an epoch; called before its first batch."""

    def evaluate(self) -> dict[str, float]:
        """Return test metrics by name; the model is in eval mode."""
        raise NotImplementedError


@dataclass
class Progress:
    """The progress of a run, saved in its checkpoints."""

    settings: dict[str, Any]
    step: int = 0
    epoch: int = 0  # whole epochs done
    loss_sum: float = 0.0  # sum over this epoch so far
    loss_count: int = 0
    seconds: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)


def add_arguments(
    parser: argparse.ArgumentParser, epochs: int | None, batch: int | None, out: str
) -> None:
    """Add the options of all training scripts. A script sets `epochs` and `batch` that are None."""
    add = parser.add_argument

    def default(value: int | None) -> str:
        return "(by model)" if value is None else "(%(default)s)"

    passes, samples = f"passes {default(epochs)}", f"samples per step {default(batch)}"
    add("--epochs", type=cli.positive, default=epochs, metavar="N", help=passes)
    add("--batch", type=cli.positive, default=batch, metavar="N", help=samples)
    add("--seed", type=cli.natural, default=0, metavar="N", help="random seed (%(default)s)")
    add(
        "--out",
        type=Path,
        default=Path(out),
        metavar="FILE",
        help="file for the weights; log and checkpoint go beside it (%(default)s)",
    )
    add(
        "--device",
        choices=("cpu", "cpu_numpy", "cuda"),
        default="cpu",
        help="device to train on (%(default)s)",
    )
    add("--resume", action="store_true", help="continue from the checkpoint beside --out")
    add("--stop-after", type=cli.positive, metavar="N", help="stop after N steps")
    add(
        "--checkpoint-every", type=cli.positive, metavar="N", help="steps per checkpoint (an epoch)"
    )
    add("-q", "--quiet", action="store_true", help="print errors only")


def main(
    program: str,
    options: argparse.Namespace,
    make_task: Callable[[argparse.Namespace, Any], Task],
) -> int:
    """Train the task that `make_task` makes from the options and the device, save it, and report
    its metrics on the test set. Returns the exit code of the program."""

    def run() -> int:
        cli.check_writable(options.out)
        device = getattr(ndl, options.device)()
        if not device.enabled():
            raise UsageError(f"device {options.device!r} is not available on this machine")
        ndl.manual_seed(options.seed)
        task = make_task(options, device)
        with terminal.progress(options.quiet) as report:
            progress = train(task, options, report)
        return finish(task, progress, options)

    return cli.guarded(program, run)


def beside(out: Path, ending: str) -> Path:
    """Return the path of the checkpoint or the log of a run whose weights go to `out`."""
    return out.with_name(f"{out.stem}{ending}")


def learning_rate(base: float, step: int, steps: int, warmup: float) -> float:
    """Return a rate: a linear rise over a share `warmup` of the steps, then half a cosine to 0."""
    rise = warmup * steps
    if step < rise:
        return base * (step + 1) / (rise + 1)
    return base * 0.5 * (1 + math.cos(math.pi * (step - rise) / max(steps - rise, 1)))


def train(task: Task, options: argparse.Namespace, report: terminal.Progress) -> Progress:
    """Train to the end or until stopped, and write a checkpoint in either case.

    Raises UsageError if there is no checkpoint to resume or if its settings were different. After
    Ctrl-C or SIGTERM, raises KeyboardInterrupt or SystemExit when the current step has ended.
    """
    settings, path = {**task.settings, "epochs": options.epochs}, beside(options.out, CHECKPOINT)
    progress = _resumed(task, path, settings) if options.resume else Progress(settings)
    base = settings["lr"]
    per_epoch = len(task.loader)
    if per_epoch == 0:
        raise UsageError("there are too few samples for one batch: choose a smaller --batch")
    steps = per_epoch * options.epochs
    last = steps if options.stop_after is None else min(steps, progress.step + options.stop_after)
    begun = time.perf_counter() - progress.seconds
    said, text = time.perf_counter(), _text(progress, options.epochs)

    def save() -> None:
        progress.seconds = time.perf_counter() - begun
        _parts(task).save(path, carried=task.carried, progress=vars(progress))

    with (
        _Log(beside(options.out, ".jsonl"), progress) as log,
        _signals() as stopped,
    ):
        while progress.step < last:
            if progress.step % per_epoch == 0:
                task.begin_epoch()
            task.model.train()
            for batch in task.loader:
                task.optimizer.lr = learning_rate(base, progress.step, steps, task.warmup)
                task.optimizer.reset_grad()
                loss = task.loss(batch)
                loss.backward()
                if task.max_norm is not None:
                    task.optimizer.clip_grad_norm(task.max_norm)
                task.optimizer.step()
                value = float(loss.numpy())
                progress.step += 1
                progress.loss_sum += value
                progress.loss_count += 1
                log.write(step=progress.step, loss=value, lr=task.optimizer.lr)
                if not math.isfinite(value):
                    raise EvaluationError(f"the loss is {value} at step {progress.step}")
                now = time.perf_counter()
                if now - said > _QUIET_SECONDS:
                    said, text = now, _text(progress, options.epochs)
                report(progress.step, steps, text)
                if progress.step % per_epoch == 0:
                    break
                if stopped or progress.step == last:
                    break
                if options.checkpoint_every and progress.step % options.checkpoint_every == 0:
                    save()
            if progress.step % per_epoch == 0:
                _end_epoch(task, progress, begun, log)
                text = _text(progress, options.epochs)
                report(progress.step, steps, text)
            save()
            if stopped:
                raise stopped[0]
    return progress


def _end_epoch(task: Task, progress: Progress, begun: float, log: _Log) -> None:
    task.model.eval()
    progress.epoch += 1
    progress.metrics = {
        "train_loss": progress.loss_sum / progress.loss_count,
        **task.evaluate(),
    }
    progress.loss_sum, progress.loss_count = 0.0, 0
    progress.seconds = time.perf_counter() - begun
    log.write(
        step=progress.step,
        epoch=progress.epoch,
        seconds=round(progress.seconds, 3),
        **progress.metrics,
    )


def _text(progress: Progress, epochs: int) -> str:
    if progress.loss_count:
        mean = progress.loss_sum / progress.loss_count
        return f"epoch {progress.epoch + 1:3d}  step {progress.step}  loss {mean:.4f}"
    figures = "  ".join(f"{name} {value:.4f}" for name, value in progress.metrics.items())
    return f"epoch {progress.epoch:3d} of {epochs}  {figures}".rstrip()


def _parts(task: Task) -> ndl.Checkpoint:
    return ndl.Checkpoint(task.model, task.optimizer, loader=task.loader)


def _resumed(task: Task, path: Path, settings: Mapping[str, Any]) -> Progress:
    if not path.is_file():
        raise UsageError(f"--resume: there is no checkpoint {path}")
    try:
        progress = Progress(**ndl.Checkpoint.read(path)["progress"])
        before = progress.settings
        for name in {**before, **settings}:
            if before.get(name) != settings.get(name):
                raise UsageError(
                    f"--resume: {name} is {settings.get(name)!r}, but the run of {path} began "
                    f"with {before.get(name)!r}"
                )
        task.carried = _parts(task).load(path, task.device)["carried"]
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"--resume: {error_line(error)}") from error
    return progress


class _Log:
    """A log of JSON lines. A resumed run first removes lines written after the checkpoint."""

    def __init__(self, path: Path, progress: Progress) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = []
        if progress.step and path.is_file():
            for line in path.read_text().splitlines(keepends=True):
                with contextlib.suppress(ValueError):  # the last line may be cut off
                    if json.loads(line).get("step", 0) <= progress.step:
                        kept.append(line)
        self._file = open(path, "w", buffering=1)
        self._file.writelines(kept)
        if not kept:
            self.write(started=host.now(), settings=progress.settings)
        elif progress.step:
            self.write(resumed=host.now(), step=progress.step)

    def write(self, **values: Any) -> None:
        self._file.write(json.dumps(values) + "\n")

    def __enter__(self) -> _Log:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


@contextlib.contextmanager
def _signals() -> Iterator[list[BaseException]]:
    """Record Ctrl-C and SIGTERM instead of raising them, so that every step is finished.

    Yields a list that gets the exception to raise later. A second Ctrl-C raises at once.
    """
    due: list[BaseException] = []

    def note(number: int, frame: Any) -> None:
        if due:
            raise due[0]
        interrupt = number == signal.SIGINT
        due.append(KeyboardInterrupt() if interrupt else SystemExit(128 + number))

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield due
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def finish(task: Task, progress: Progress, options: argparse.Namespace) -> int:
    """Write the weights of a finished run and report its result; return the exit code."""
    if progress.epoch < options.epochs:
        path = beside(options.out, CHECKPOINT)
        text = f"stopped after step {progress.step}; --resume continues from {path}"
    else:
        task.model.eval()
        ndl.save(options.out, task.model)
        figures = [
            f"{name.replace('_', ' ')} {value:.2%}"
            if name.endswith("accuracy")
            else f"{name.replace('_', ' ')} {value:.4f}"
            for name, value in progress.metrics.items()
            if name != "train_loss"
        ]
        text = (
            f"{', '.join(figures)} after {progress.epoch} epochs in {progress.seconds:.1f} s; "
            f"wrote {options.out}"
        )
    if not options.quiet:
        sys.stdout.write(f"{text}\n")
    return cli.OK
