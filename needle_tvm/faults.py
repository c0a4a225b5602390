"""Errors that no model is to blame for: a pass, a rule or TVM failed on what it was given."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from needle_tvm.errors import CompilationError, NeedleTVMError

_MESSAGE = "Error message: "  # where TVM's page about a schedule ends


@contextmanager
def blamed_on(what: str, switch: str | None = None) -> Iterator[None]:
    """Whatever is raised inside, but for errors raised on purpose, becomes a CompilationError.

    It says in a sentence that `what` failed, and which name in `disable` leaves it out, where there
    is one; TVM's own page is its cause.
    """
    try:
        yield
    except CompilationError as error:  # of something inside
        raise CompilationError(f"{what}: {error}") from error.__cause__
    except (NeedleTVMError, MemoryError):
        raise
    except Exception as error:
        advice = f"; disable=[{switch!r}] compiles without it" if switch else ""
        raise CompilationError(
            f"{what} failed, which is a fault of the compiler's and not of the model's "
            f"({_sentence(error)}){advice}"
        ) from error


def _sentence(error: Exception) -> str:
    """What an error says, without the program that TVM prints around it."""
    text = str(error).strip()
    _, found, rest = text.rpartition(_MESSAGE)
    first = (rest if found else text).partition("\n")[0]
    name = type(error).__name__
    return first if first.startswith(name) else f"{name}: {first}"
