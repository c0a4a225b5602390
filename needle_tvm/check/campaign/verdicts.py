"""What a program of the campaign may come to, and at what it is judged."""

from __future__ import annotations

from needle.errors import ShapeError, TraceError
from needle_tvm.errors import MismatchError, TranslationError

RIGHT, WRONG, REFUSED, FOREIGN = "right", "wrong", "refused", "foreign"

# What may be refused, each in a sentence of its own. Anything else that is raised is a fault.
REFUSALS = (TraceError, TranslationError, ShapeError)

# Unscheduled loops run on one thread: there the code is the same for any number.
VARIANTS = (("noopt", 1), ("fused", 1), ("tuned", 1), ("tuned", 2))


def place(stage: str, threads: int) -> str:
    """How a stage on so many threads is named in a verdict."""
    return f"{stage}, {threads} thread{'s' if threads > 1 else ''}"


class Failure(Exception):
    """What was raised at a stage, on so many threads."""

    def __init__(self, where: str, error: Exception) -> None:
        super().__init__(where)
        self.where, self.error = where, error


def raised(where: str, error: Exception) -> tuple[str, str, str]:
    """Where, the verdict and what is said of an error. A mismatch that the check found is a wrong
    result."""
    what = f"{type(error).__name__}: {error}"
    if isinstance(error, MismatchError):
        return where, WRONG, what
    internal = "InternalError" in what or "\n" in what
    if isinstance(error, REFUSALS) and not internal:
        return where, REFUSED, what
    return where, FOREIGN, what
