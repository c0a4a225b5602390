"""Errors for PyTorch models that needle refuses."""

from __future__ import annotations

import re
from typing import Any

from ..errors import UnsupportedError

# Explanations of export's errors, by a part of the error's text.
_REASONS = {
    "'size' failed to unpack the object at pos 2 with error": (
        "it packs sequences (pack_padded_sequence), whose shapes depend on values: give recurrent "
        "layers padded sequences, and mask their outputs"
    ),
    "is mutated in the forward method": (
        "it writes to a tensor that is neither a parameter nor a buffer: register it as a buffer "
        "(register_buffer)"
    ),
    "found a fake tensor in the exported": (
        "it creates or writes a tensor in a way that torch.export cannot follow, such as .data: "
        "write it under torch.no_grad(), as in weight.add_(1)"
    ),
}


def reason_of(error: Exception) -> str:
    """Return the reason why export refuses a model, as a phrase without a full stop."""
    for part, reason in _REASONS.items():
        if part in str(error):
            return reason
    text = first_line(error)
    return re.sub(r"\s*[^.]*\b([Pp]lease|[Pp]ls) (file|open|report|create)[^.]*(\.|$)", "", text)


def not_taken(model: Any, reason: str) -> UnsupportedError:
    """Return the error for a model that needle refuses for this `reason`."""
    return UnsupportedError(f"{type(model).__name__}: {reason}")


def first_line(error: Exception) -> str:
    """Return the type and the first line of an error."""
    return f"{type(error).__name__}: {error}".strip().splitlines()[0]
