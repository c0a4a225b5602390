"""Prints tables and progress on a terminal with the package rich."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from needle_runtime.text import printable

if TYPE_CHECKING:
    from rich.console import Console

    from needle_tvm.tune.status import Status

Progress = Callable[[int, int, "str | Status"], None]

_LINE_SECONDS = 2.0  # between lines of a search's progress while it finds nothing faster


def console(*, stderr: bool = False, quiet: bool = False) -> Console:
    """Return a console that prints text as it is: brackets are not markup, :words: not emoji.

    Names of models, files and kernels may hold any text. The console is 120 columns wide, or as
    wide as its terminal.
    """
    from rich.console import Console

    made = Console(stderr=stderr, quiet=quiet, markup=False, emoji=False, highlight=False)
    if not made.is_terminal:
        made.width = 120
    return made


@contextmanager
def progress(quiet: bool = False) -> Iterator[Progress]:
    """Show a progress bar on stderr, or one line per new step if stderr is not a terminal, or
    nothing if `quiet`.

    Yields a function to call with (done, total, text). If the text is a search's `Status`, the bar
    shows how much of the budget is spent. Without a terminal, a status is printed as a line at most
    every two seconds, or when a task has become faster.
    """
    if quiet:
        yield lambda done, total, text: None
        return
    screen = console(stderr=True)
    if screen.is_terminal:
        with _display(screen) as show:
            yield show
    else:
        lines = _Lines(screen)
        try:
            yield lines.show
        finally:
            lines.flush()


@contextmanager
def _display(console: Console) -> Iterator[Progress]:
    """Show a bar while the block runs."""
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn()
    with Bars(*columns, console=console, transient=True, refresh_per_second=8) as bars:
        task = bars.add_task("starting")

        def show(done: int, total: int, text: str | Status) -> None:
            if isinstance(text, str):
                bars.update(task, completed=done, total=max(total, 1), description=printable(text))
            else:
                # The bar never completes here, because a complete bar's clock stops.
                spent = min(text.spent or 0, 0.999)
                bars.update(task, total=1, completed=spent, description=printable(text.headline))

        yield show


class _Lines:
    """Prints progress as lines of text, for a log."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._said = ""
        self._pending = ""  # the last status of a search, if it was not printed yet
        self._best: dict[str, float | None] = {}
        self._next = 0.0

    def show(self, done: int, total: int, text: str | Status) -> None:
        if isinstance(text, str):
            self.flush()
            self._say(text)
            return
        best = dict(text.best)
        improved = best != self._best and any(best.values())
        self._pending = str(text)
        if improved or time.monotonic() >= self._next:
            self.flush()
        self._best = best

    def flush(self) -> None:
        """Print the last status of a search if it was not printed yet."""
        if self._pending:
            self._say(self._pending)
            self._pending, self._next = "", time.monotonic() + _LINE_SECONDS

    def _say(self, line: str) -> None:
        if line != self._said:
            # The line is not wrapped, because a pipe has no width.
            self._console.print(printable(line), soft_wrap=True)
        self._said = line
