"""Error classes of needle's own; all other errors are Python's."""

from __future__ import annotations


class ShapeError(ValueError):
    """The shapes given to an op, or its attributes, do not fit together."""


class TraceError(RuntimeError):
    """Tracing met something that it cannot record: a read of a value, a write to model state."""


class ChangedError(RuntimeError):
    """A tensor that a traced function read as a constant was written since, or is gone."""


class DimError(ValueError):
    """`dims` names an input or an axis that is not there, or holds what cannot be an extent."""


class LinAlgError(ValueError):
    """A matrix does not have what a function of needle.linalg needs: it is singular, or not
    positive definite, or an iteration did not converge."""


class ModelError(ValueError):
    """A model file is damaged or holds what its format forbids; the text names the place.

    The text is escaped where it is not printable: it quotes the file, and ends up on terminals.
    """

    def __str__(self) -> str:
        return "".join(
            c if c.isprintable() else c.encode("unicode_escape").decode() for c in super().__str__()
        )


class UnsupportedError(ModelError):
    """A model file is valid and needs something that needle does not have, or a gradient is asked
    for that needle does not have; the text names it."""
