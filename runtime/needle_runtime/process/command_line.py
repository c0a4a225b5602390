"""Helpers shared by all command lines: one-line errors, exit codes, options."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from needle_runtime.errors import NeedleTVMError, UsageError
from needle_runtime.text import error_line, one_line

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130

_LARGEST = 2**63 - 1
_MOST_REPEATS = 1_000_000  # all times are kept in memory


def open_streams() -> None:
    """Open standard streams that the caller has closed (`>&-`) to the null device.

    Otherwise Python sets them to None, and the next file that is opened gets the descriptor.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            try:
                os.fstat(number)
            except OSError:
                found = os.open(os.devnull, os.O_RDWR)
                if found != number:
                    os.dup2(found, number)
                    os.close(found)
            setattr(sys, name, open(os.devnull, mode))


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line.

    `rest` is the name of the list argument that also receives positional arguments after options.
    By itself, argparse would reject those as unknown.
    """

    rest: str | None = None

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        open_streams()
        return super().parse_args(args, namespace)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, left = super().parse_known_args(args, namespace)
        if self.rest is not None:
            more = [text for text in left if not text.startswith("-")]
            setattr(found, self.rest, [*getattr(found, self.rest), *more])
            left = [text for text in left if text.startswith("-")]
        return found, left

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"{self.prog}: error: {one_line(message)}\n")


def positive(text: str) -> int:
    """Parse a whole number of at least 1."""
    return _whole(text, 1)


def natural(text: str) -> int:
    """Parse a whole number of at least 0."""
    return _whole(text, 0)


def repeats(text: str) -> int:
    """Parse a whole number from 1 to a million, for the number of timed calls."""
    return _whole(text, 1, _MOST_REPEATS)


def _whole(text: str, least: int, most: int = _LARGEST) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if value < least:
        raise argparse.ArgumentTypeError(f"{value} is below {least}")
    if value > most:
        raise argparse.ArgumentTypeError(f"{value} is above {most}")
    return value


def seconds(text: str) -> float:
    """Parse a number of seconds above 0."""
    return _time(text, "seconds")


def minutes(text: str) -> float:
    """Parse a number of minutes above 0."""
    return _time(text, "minutes")


def _time(text: str, unit: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of {unit}") from None
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a finite number above 0")
    return value


def check_writable(path: Path, *, folder: bool = False) -> None:
    """Raise UsageError, before any work is done, if the file `path` could not be written later.

    With `folder`, `path` is the folder of the file.
    """
    try:
        there = next(each for each in (path, *path.absolute().parents) if each.exists())
        if (folder or there != path) and not there.is_dir():
            raise UsageError(f"{path}: {there} is not a folder")
        if not folder and there == path and there.is_dir():
            raise UsageError(f"{path}: is a folder, not a file")
        if not os.access(there, os.W_OK):
            raise UsageError(f"{path}: {there} is not writable")
        # Permission alone is not enough: files cannot be created in /proc or on a full disk.
        with tempfile.TemporaryFile(dir=there if there.is_dir() else there.parent):
            pass
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror})") from error


def guarded(program: str, run: Callable[[], int], debug: bool = False) -> int:
    """Call `run`, which does the work of `program`; every error becomes one line on stderr.

    Returns the exit code. With `debug` or NEEDLE_DEBUG set, a traceback is printed. Ctrl-C and
    SIGTERM unwind the stack, so that child processes and temporary files are removed too.
    """
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        code = run()
        sys.stdout.flush()
        return code
    except KeyboardInterrupt as error:
        _free_frames(error)
        return _complain(program, "interrupted", INTERRUPTED)
    except BrokenPipeError:  # the reader of our output has ended, as in `... | head`
        return FAILED
    except Exception as error:
        if debug or os.environ.get("NEEDLE_DEBUG"):
            traceback.print_exc()
            details = getattr(error.__cause__ or error, "details", "")  # a child's stderr
            sys.stderr.write(details and f"{details}\n")
        _free_frames(error)
        if isinstance(error, UsageError):
            return _complain(program, error_line(error), USAGE)
        if isinstance(error, (NeedleTVMError, OSError, *_errors_of_needle())):
            return _complain(program, error_line(error), FAILED)
        text = f"{type(error).__name__}: {error_line(error)} (NEEDLE_DEBUG=1 shows where)"
        return _complain(program, text, FAILED)
    finally:
        signal.signal(signal.SIGTERM, before)
        try:
            sys.stdout.flush()
        except OSError:  # no reader, or the disk is full; Python would flush again at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _errors_of_needle() -> tuple[type[Exception], ...]:
    """Return needle's TraceError if needle was imported; otherwise nothing can have raised it."""
    errors = sys.modules.get("needle.errors")
    return (errors.TraceError,) if errors else ()


def _free_frames(error: BaseException | None) -> None:
    """Free the values in the frames of an error.

    TVM warns on stderr when an unfinished block builder is freed. Freeing it here puts the
    warning before the program's own last line.
    """
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _complain(program: str, text: str, code: int) -> int:
    sys.stderr.write(f"{program}: error: {text}\n")
    return code


def _terminate(number: int, frame: Any) -> NoReturn:
    raise SystemExit(128 + number)


def add_size(parser: argparse.ArgumentParser) -> None:
    """Add `--size DIM=N`, which may be given for several dims."""
    parser.add_argument(
        "--size",
        type=_size_of_dim,
        action="append",
        default=[],
        metavar="DIM=N",
        help="size of a dim in random inputs (default: the least)",
    )


def _size_of_dim(text: str) -> tuple[str, int]:
    name, separator, number = text.partition("=")
    if not separator or not number.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form DIM=N")
    return name, int(number)
