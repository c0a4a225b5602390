"""Errors that are the compiler's fault: a pass, a rule or TVM failed on its input."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from needle_runtime.errors import NeedleTVMError
from needle_tvm.errors import CompilationError

if TYPE_CHECKING:
    from needle.autograd import Node

# TVM's page-long report about a schedule has this marker just before the message.
_MESSAGE = "Error message: "

# TVM's prefix to a hand-written message: "Check failed: (a) is false: ", or
# "Check failed: a <= b (3 vs. 2) : ".
_CONDITION = re.compile(r"^Check failed: .*?(?:\) is false|\(\S+ vs\. \S+\)) ?: *")


@contextmanager
def blamed_on(what: str, switch: str | None = None) -> Iterator[None]:
    """Turn any exception raised inside, except errors raised on purpose, into a CompilationError.

    The error says in one sentence that `what` failed and, if there is a `switch`, that
    `disable=[switch]` leaves it out. The error's cause is TVM's own report.
    """
    try:
        yield
    except CompilationError as error:  # from a `blamed_on` inside
        raise CompilationError(f"{what}: {error}") from error.__cause__
    except (NeedleTVMError, MemoryError):
        raise
    except Exception as error:
        advice = f"; to compile without this step, pass disable=[{switch!r}]" if switch else ""
        raise CompilationError(
            f"{what} failed; the fault lies in the compiler and not in the model "
            f"({sentence(error)}){advice}"
        ) from error


def sentence(error: Exception) -> str:
    """Return an error's message as one line, without the program and the condition that TVM
    prints."""
    text = str(error).strip()
    _, found, rest = text.rpartition(_MESSAGE)
    first = (rest if found else text).partition("\n")[0]
    first = _CONDITION.sub("", first) or first
    name = type(error).__name__
    return first if first.startswith(name) else f"{name}: {first}"


def named(node: Node) -> str:
    """Return a node's op, and the module that called the op."""
    assert node.op is not None  # a leaf cannot be at fault
    return f"op {node.op.name}{f' (in {node.scope})' if node.scope else ''}"
