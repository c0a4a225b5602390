"""needle's own error classes; all other errors are Python's."""

from __future__ import annotations


class ShapeError(ValueError):
    """The shapes of an op's inputs do not fit together, or do not fit its attributes."""


class TraceError(RuntimeError):
    """Tracing met an action that it cannot record, such as reading a value or writing model
    state."""


class ChangedError(RuntimeError):
    """A tensor that a traced function read as a constant has since been written to or no longer
    exists."""


class DimError(ValueError):
    """`dims` names an input or an axis that does not exist, or has a value that is not an
    extent."""


class LinAlgError(ValueError):
    """A function of needle.linalg failed on a matrix: the matrix is singular or not positive
    definite, or an iteration did not converge."""


class ModelError(ValueError):
    """A model file is damaged or breaks the rules of its format; the message says where.

    The message quotes the file and ends up on terminals, so unprintable characters are escaped.
    """

    def __str__(self) -> str:
        return "".join(
            c if c.isprintable() else c.encode("unicode_escape").decode() for c in super().__str__()
        )


class UnsupportedError(ModelError):
    """A valid model file needs something that needle does not have, or a call needs a gradient that
    needle does not have; the message names it."""
