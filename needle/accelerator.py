"""The accelerator of this machine, a CUDA GPU or none; the names are as in torch.accelerator."""

from __future__ import annotations

from .backend_ndarray import Device, cuda

__all__ = ["current_accelerator", "is_available"]


def is_available() -> bool:
    """Return whether this machine has an accelerator that needle can use.

    >>> device = ndl.accelerator.current_accelerator() if ndl.accelerator.is_available() else "cpu"
    """
    return cuda().enabled()


def current_accelerator() -> Device | None:
    """Return the first CUDA GPU, or None if there is none."""
    return cuda() if cuda().enabled() else None
