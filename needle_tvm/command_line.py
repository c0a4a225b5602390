"""What all command lines share: one-line errors, exit codes, progress on stderr."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from needle_tvm.errors import NeedleTVMError, UsageError

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130

Progress = Callable[[int, int, str], None]


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"{self.prog}: error: {message}\n")


def positive(text: str) -> int:
    """A whole number of at least 1."""
    return _whole(text, 1)


def natural(text: str) -> int:
    """A whole number of at least 0."""
    return _whole(text, 0)


def _whole(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if value < least:
        raise argparse.ArgumentTypeError(f"{value} is below {least}")
    return value


def seconds(text: str) -> float:
    """A number of seconds above 0."""
    return _time(text, "seconds")


def minutes(text: str) -> float:
    """A number of minutes above 0."""
    return _time(text, "minutes")


def _time(text: str, unit: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of {unit}") from None
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def check_writable(path: Path) -> None:
    """Raises UsageError, before any work is done, when `path` could not be written later."""
    there = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if there != path and not there.is_dir():
        raise UsageError(f"{path}: {there} is not a folder")
    if not os.access(there, os.W_OK):
        raise UsageError(f"{path}: {there} is not writable")


def guarded(program: str, run: Callable[[], int], debug: bool = False) -> int:
    """Runs a program; its exit code, with every error as one line on stderr.

    A traceback is printed with `debug` or NEEDLE_DEBUG set. Ctrl-C and SIGTERM unwind, so that
    child processes and temporary files go too.
    """
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        return run()
    except KeyboardInterrupt:
        return _complain(program, "interrupted", INTERRUPTED)
    except BrokenPipeError:  # the reader of our output has gone, as in `... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:
        if debug or os.environ.get("NEEDLE_DEBUG"):
            traceback.print_exc()
            details = getattr(error.__cause__ or error, "details", "")  # a child's stderr
            sys.stderr.write(details and f"{details}\n")
        if isinstance(error, UsageError):
            return _complain(program, one_line(error), USAGE)
        if isinstance(error, (NeedleTVMError, OSError, *_errors_of_needle())):
            return _complain(program, one_line(error), FAILED)
        text = f"{type(error).__name__}: {one_line(error)} (NEEDLE_DEBUG=1 shows where)"
        return _complain(program, text, FAILED)
    finally:
        signal.signal(signal.SIGTERM, before)


def _errors_of_needle() -> tuple[type[Exception], ...]:
    """A model that cannot be traced; where needle was not imported, nothing of it was raised."""
    errors = sys.modules.get("needle.errors")
    return (errors.TraceError,) if errors else ()


def _complain(program: str, text: str, code: int) -> int:
    sys.stderr.write(f"{program}: error: {text}\n")
    return code


def _terminate(number: int, frame: Any) -> NoReturn:
    raise SystemExit(128 + number)


def one_line(error: BaseException) -> str:
    """An error's text on one line."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    text = error.args[0] if isinstance(error, KeyError) and error.args else error
    return " ".join(str(text).split()) or type(error).__name__


@contextmanager
def progress(quiet: bool = False) -> Iterator[Progress]:
    """A bar on a terminal's stderr, one line for each new step elsewhere, nothing when quiet.

    What it gives is called with (done, total, text).
    """
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True, quiet=quiet)
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        with Bars(*columns, console=console, transient=True) as bars:
            task = bars.add_task("starting")
            yield lambda done, total, text: bars.update(
                task, completed=done, total=max(total, 1), description=text
            )
    else:
        said = [""]

        def say(done: int, total: int, text: str) -> None:
            if text != said[0]:
                console.print(text, highlight=False)
            said[0] = text

        yield say
