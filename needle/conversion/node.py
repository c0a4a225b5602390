"""The base of the nodes of a foreign graph, and errors that name the node."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ..errors import ModelError, TraceError, UnsupportedError


class NamedNode:
    """A node whose `str` names it and its operator."""

    def invalid(self, why: str) -> ModelError:
        """Return the error for a node that breaks a rule of its operator."""
        return ModelError(f"{self}: {why}")

    def unsupported(self, what: str) -> UnsupportedError:
        """Return the error for a node that needs something that needle does not have."""
        return UnsupportedError(f"{self}: not supported: {what}")


@contextlib.contextmanager
def named(
    node: NamedNode,
    otherwise: type[ModelError] = ModelError,
    kept: tuple[type[Exception], ...] = (),
) -> Iterator[None]:
    """Return a context in which all errors name the node. Python's own errors become `otherwise`,
    except that errors of the classes in `kept` keep their class."""
    try:
        yield
    except ModelError as error:
        if str(error).startswith("node "):
            raise
        raise type(error)(f"{node}: {error}") from error
    except TraceError as error:
        raise TraceError(f"{node}: {error}") from error
    except kept as error:
        raise type(error)(f"{node}: {error}") from error
    except (ArithmeticError, LookupError, MemoryError, TypeError, ValueError) as error:
        raise otherwise(f"{node}: {error}") from error
