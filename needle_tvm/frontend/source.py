"""`Source`, the form in which every front end hands a model to the compiler."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from needle_runtime import Program
    from needle_runtime.state import State
    from needle_tvm._tvm.names import IRModule, Target

Array = np.ndarray[Any, Any]


class Weights(Protocol):
    """A model's weights by name, wherever they are kept; see `needle.trace.weights.Weights`."""

    def values(self) -> Mapping[str, Any]:
        """Return the current weights."""

    def follow(self, use: Callable[[Mapping[str, Any]], None]) -> None:
        """Call `use` with the weights if one has changed since the last call."""


@dataclass(frozen=True)
class FixedWeights:
    """Weights that never change."""

    arrays: Mapping[str, Array]

    def values(self) -> Mapping[str, Any]:
        """Return the weights."""
        return self.arrays

    def follow(self, use: Callable[[Mapping[str, Any]], None]) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class Source:
    """A model in the compiler's form.

    - `fingerprint` covers everything in the model that decides the code. It is None for a model
      with ops defined outside needle, because the code then also depends on their lowering rules.
    - `lower(target)` returns the module after the stage's graph passes, and the signature for the
      manifest. With a fingerprint, it is called only if the cache has no entry.
    - `weights` are the model's weights.
    - `examples` are the inputs that the code is checked on: the given ones and, if some sizes are
      open, inputs of other sizes.
    - `reference(inputs, params)` returns the eager model's outputs, and `tolerances(inputs)` the
      allowed difference of each output, relative to its magnitude.
    - `explain(inputs, found)` checks outputs for `inputs` and the current weights more closely. It
      returns what is wrong with them, or None.
    - `diverges(inputs, program, stage)` names the first operation whose result is wrong when
      compiled at that stage, or returns None if all are right.
    - `state` has the tensors that calls of the model write. Its arrays are the last inputs, and
      their new values the last outputs.

    `inputs` is always one of `examples`, except in `reference`.
    """

    fingerprint: str | None
    lower: Callable[[Target], tuple[IRModule, dict[str, Any]]]
    weights: Weights
    examples: list[list[Array]]
    reference: Callable[[list[Array], Mapping[str, Array]], list[Array]]
    tolerances: Callable[[list[Array]], list[float]]
    explain: Callable[[list[Array], list[Array]], str | None]
    diverges: Callable[[list[Array], Program, str], str | None]
    state: State | None = None

    def fingerprint_with(self, kind: str, *parts: str) -> str | None:
        """Return a fingerprint with the prefix `kind`, for a source whose code also depends on
        `parts`."""
        if self.fingerprint is None:
            return None
        text = "\n".join((self.fingerprint, *parts))
        return f"{kind}:{hashlib.sha256(text.encode()).hexdigest()}"

    def params(self) -> dict[str, Array]:
        """Return the current weights as NumPy arrays."""
        return {name: to_numpy(value) for name, value in self.weights.values().items()}


def to_numpy(value: Any) -> Array:
    """Convert a Tensor, an NDArray or anything NumPy understands to a NumPy array."""
    from needle_runtime.artifact.arrays import as_numpy

    return value.numpy() if hasattr(value, "numpy") else as_numpy(value, "array")
