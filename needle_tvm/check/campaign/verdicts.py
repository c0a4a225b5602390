"""The possible verdicts on a program of the campaign, and the variants that it is compiled in.

`judge` and `torch.programs` give verdicts; `campaign` counts them.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from needle.errors import ShapeError, TraceError, UnsupportedError
from needle_tvm.errors import MismatchError, TranslationError

RIGHT, WRONG, REFUSED, FOREIGN = "right", "wrong", "refused", "foreign"

# Errors that count as a refusal if the message is one line. Any other error is a fault.
REFUSALS = (TraceError, TranslationError, ShapeError, UnsupportedError)

# Unscheduled loops run on one thread, so their code is the same for any number of threads.
VARIANTS = (("noopt", 1), ("fused", 1), ("tuned", 1), ("tuned", 2))
_SHARES = (15, 15, 30, 40)  # percentages, for programs that are compiled at only one variant


def cheaper(seed: int) -> dict[str, Any]:
    """Return request fields that make the answer faster. With them, a seed's program is compiled at
    one variant, and LLVM optimises the code of only one program in six."""
    rng = random.Random(f"variant {seed}")
    return {"variants": rng.choices(VARIANTS, _SHARES), "quick": rng.random() > 1 / 6}


def code(request: Mapping[str, Any]) -> AbstractContextManager[None]:
    """Return the context for compiling a request's programs; `quick` ones are not optimised."""
    if not request.get("quick"):
        return nullcontext()
    from needle_tvm.lower.libraries import unoptimized

    return unoptimized()


def place(stage: str, threads: int) -> str:
    """Return the name that a verdict uses for a stage on `threads` threads."""
    return f"{stage}, {threads} thread{'s' if threads > 1 else ''}"


class Failure(Exception):
    """An exception raised at a stage and a number of threads."""

    def __init__(self, where: str, error: Exception) -> None:
        super().__init__(where)
        self.where, self.error = where, error


def raised(where: str, error: Exception) -> tuple[str, str, str]:
    """Return (where, verdict, text) for an error.

    A mismatch found by the check at the first compile counts as a wrong result.
    """
    what = f"{type(error).__name__}: {error}"
    if isinstance(error, MismatchError):
        return where, WRONG, what
    internal = "InternalError" in what or "\n" in what
    if isinstance(error, REFUSALS) and not internal:
        return where, REFUSED, what
    return where, FOREIGN, what
