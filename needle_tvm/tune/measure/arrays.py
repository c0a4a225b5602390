"""Copies a call's arrays to and from a GPU; `devices` uses this."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from needle_runtime.artifact import bfloat16
from needle_runtime.memory import aligned_copy
from needle_tvm._tvm.names import tvm
from needle_tvm.lower.libraries import prefix_view
from needle_tvm.tune.gate.gate import Array, Gate

_GUARD, _UNWRITTEN = 16 << 10, 0xFF  # number of bytes behind a result, and the value of each

SPILLED = "memory behind an output was written"


class Arrays:
    """A call's arrays copied to `device`, with a guard behind each output.

    `tensors` are in the order of the function's parameters. There is no guard before an output,
    because compiled functions accept an array only at the start of its memory.
    """

    def __init__(
        self, device: Any, gate: Gate, inputs: Sequence[Array], outputs: Sequence[Array]
    ) -> None:
        self._here = [bfloat16.to_tensor(tvm.runtime, array) for array in inputs]
        self._inputs = [_copy(tensor, device) for tensor in self._here]
        self._results = list(outputs)
        self._memory = [aligned_copy(_guarded(array)) for array in outputs]
        self._there = [_copy(bfloat16.to_tensor(tvm.runtime, m), device) for m in self._memory]
        views = [
            prefix_view(memory, array.shape, array.dtype.name)
            for memory, array in zip(self._there, outputs, strict=True)
        ]
        self.tensors = gate.arguments(self._inputs, views)

    def fetch(self) -> bool:
        """Copy everything back, including inputs, which may have changed; return whether a guard
        changed."""
        for here, there in zip(self._here, self._inputs, strict=True):
            there.copyto(here)
        changed = False
        for result, memory, there in zip(self._results, self._memory, self._there, strict=True):
            there.copyto(bfloat16.to_tensor(tvm.runtime, memory))
            result.reshape(-1).view(np.uint8)[...] = memory[: result.nbytes]
            changed |= bool((memory[result.nbytes :] != _UNWRITTEN).any())
        return changed


def _guarded(array: Array) -> Array:
    bytes_ = array.reshape(-1).view(np.uint8)
    return np.concatenate([bytes_, np.full(_GUARD, _UNWRITTEN, np.uint8)])


def _copy(tensor: Any, device: Any) -> Any:
    return tensor.copyto(tvm.runtime.empty(tensor.shape, str(tensor.dtype), device))
