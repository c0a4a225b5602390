"""`Source`, the form in which every front end hands a model to the compiler."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from needle_tvm._tvm.names import IRModule, Target
    from needle_tvm.runtime import Program
    from needle_tvm.runtime.state import State

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
    """A model in the form the compiler takes.

    - `fingerprint` covers everything in the model that decides the code. It is None for a model
      with ops that are not needle's: the lowered module has all that their rules gave.
    - `lower(target)` returns the module after the stage's graph passes, and the signature for the
      manifest. With a fingerprint, it is called only if the cache has no entry.
    - `examples` are inputs on which the code is checked: those that were given, and if sizes are
      left to the call, others with other sizes.
    - `reference(inputs, params)` returns the eager model's outputs, and `tolerances(inputs)` how
      far each output may be from them, relative to its magnitude.
    - `explain(inputs, found)` checks outputs for `inputs` and the current weights more closely. It
      says what is wrong with them, or returns None.
    - `diverges(inputs, program, stage)` names the first operation whose result is wrong when
      compiled at that stage, or returns None if each is right.

    - `state` is what calls of the model write. Its arrays are the last inputs, and their new values
      the last outputs.

    `inputs` is one of `examples`, but for `reference`.
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
        """The fingerprint of a source of some kind, whose code these texts decide as well."""
        if self.fingerprint is None:
            return None
        text = "\n".join((self.fingerprint, *parts))
        return f"{kind}:{hashlib.sha256(text.encode()).hexdigest()}"

    def params(self) -> dict[str, Array]:
        """Return the current weights as NumPy arrays."""
        return {name: to_numpy(value) for name, value in self.weights.values().items()}


def to_numpy(value: Any) -> Array:
    """Convert a Tensor, an NDArray or anything NumPy understands to a NumPy array."""
    from needle_tvm.artifact.arrays import as_numpy

    return value.numpy() if hasattr(value, "numpy") else as_numpy(value, "array")
