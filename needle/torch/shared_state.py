"""The state of a PyTorch model, shared with code that computes new values for it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from .arrays import tensor_of
from .refusals import not_taken


class SharedState:
    """Parameters and buffers of a PyTorch model, given by name and read and written in place.

    The names are looked up at each use, because the model's own code may have replaced a buffer.
    """

    in_place = True

    def __init__(self, model: Any, names: Sequence[str]) -> None:
        self._model, self._names = model, list(names)

    @property
    def key(self) -> object:
        """A key that identifies the model."""
        return "state of a PyTorch model", id(self._model)

    def _tensors(self) -> list[Any]:
        found = []
        for name in self._names:
            *path, last = name.split(".")
            found.append(getattr(functools.reduce(getattr, path, self._model), last).detach())
        return found

    def values(self) -> list[Any]:
        """Return the current tensors, which share the model's memory."""
        return self._tensors()

    def write(self, values: Sequence[Any]) -> None:
        """Write new `values`, arrays or tensors, into the model's tensors. A value of None means
        that the tensor has already been written; then only its version counter is incremented."""
        import torch

        for tensor, value in zip(self._tensors(), values, strict=True):
            if value is None:
                was_written(tensor)
                continue
            new = tensor_of(value) if isinstance(value, np.ndarray) else torch.from_dlpack(value)
            with torch.inference_mode(tensor.is_inference()):
                tensor.copy_(new)


def was_written(tensor: Any) -> None:
    """Increment a tensor's version counter, as PyTorch does when it writes to the tensor itself."""
    import torch

    if not tensor.is_inference():
        torch.autograd.graph.increment_version(tensor)


def check_apart(model: Any, written: Sequence[str] | None = None) -> None:
    """Raise UnsupportedError if a `written` parameter or buffer of a `model` shares memory with
    another, because PyTorch would change both. By default, all names are checked."""
    tensors = {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }
    places = {name: _place(each) for name, each in tensors.items()}
    for name in places if written is None else written:
        for other in places:
            if other != name and _overlap(places[name], places[other]):
                raise not_taken(
                    model,
                    f"it writes to {name!r}, which shares memory with {other!r}: register one "
                    "tensor, and derive the other from it in forward",
                )


def _place(tensor: Any) -> tuple[int, int, int]:
    """Return the addresses of a tensor's storage, of its first byte, and of the byte after its last
    byte."""
    size, start = tensor.element_size(), tensor.data_ptr()
    reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    end = start + (reach + 1) * size if tensor.numel() else start
    return tensor.untyped_storage().data_ptr(), start, end


def _overlap(one: tuple[int, int, int], other: tuple[int, int, int]) -> bool:
    return one[0] == other[0] and one[1] < other[2] and other[1] < one[2]
