"""Errors that no model is to blame for: a pass, a rule or TVM failed on what it was given."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from needle_tvm.errors import CompilationError, NeedleTVMError

if TYPE_CHECKING:
    from needle.autograd import Node

_MESSAGE = "Error message: "  # where TVM's page about a schedule ends

# What TVM says before the sentence that its author wrote: "Check failed: (a) is false: ", or
# "Check failed: a <= b (3 vs. 2) : ".
_CONDITION = re.compile(r"^Check failed: .*?(?:\) is false|\(\S+ vs\. \S+\)) ?: *")


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
            f"({sentence(error)}){advice}"
        ) from error


def sentence(error: Exception) -> str:
    """What an error says in a line, without the program and the condition that TVM prints."""
    text = str(error).strip()
    _, found, rest = text.rpartition(_MESSAGE)
    first = (rest if found else text).partition("\n")[0]
    first = _CONDITION.sub("", first) or first
    name = type(error).__name__
    return first if first.startswith(name) else f"{name}: {first}"


def named(node: Node) -> str:
    """A node's op, and the module that made it."""
    assert node.op is not None  # leaves are no one's fault
    return f"op {node.op.name}{f' (in {node.scope})' if node.scope else ''}"
