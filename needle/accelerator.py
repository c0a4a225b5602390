"""The accelerator of this machine, by the names of torch.accelerator: a CUDA GPU, or none."""

from __future__ import annotations

from .backend_ndarray import Device, cuda

__all__ = ["current_accelerator", "is_available"]


def is_available() -> bool:
    """Return whether there is an accelerator that can be used.

    >>> device = ndl.accelerator.current_accelerator() if ndl.accelerator.is_available() else "cpu"
    """
    return cuda().enabled()


def current_accelerator() -> Device | None:
    """Return the first CUDA GPU, or None where there is none."""
    return cuda() if cuda().enabled() else None
