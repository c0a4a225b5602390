"""What every node of a foreign graph can do: name itself in errors."""

from __future__ import annotations

from ..errors import ModelError, UnsupportedError


class NamedNode:
    """A node whose `str` names it and its operator."""

    def invalid(self, why: str) -> ModelError:
        """The error for a node that breaks a rule of its operator."""
        return ModelError(f"{self}: {why}")

    def unsupported(self, what: str) -> UnsupportedError:
        """The error for a node that needs what needle does not have."""
        return UnsupportedError(f"{self}: {what}")
