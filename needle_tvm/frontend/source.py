"""What is compiled, whichever front end it comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from needle_tvm._tvm.names import IRModule, Target
    from needle_tvm.runtime import Program

Array = np.ndarray[Any, Any]


class Weights(Protocol):
    """The weights of a model by name, wherever they are kept; see `needle.weights.Weights`."""

    def values(self) -> Mapping[str, Any]:
        """The weights as they are."""

    def follow(self, use: Callable[[Mapping[str, Any]], None]) -> None:
        """Call `use` with the weights where one has changed since the last time."""


@dataclass(frozen=True)
class FixedWeights:
    """Weights that stay what they were."""

    arrays: Mapping[str, Array]

    def values(self) -> Mapping[str, Any]:
        """The weights."""
        return self.arrays

    def follow(self, use: Callable[[Mapping[str, Any]], None]) -> None:
        """Nothing ever changes."""


@dataclass(frozen=True)
class Source:
    """A model as the compiler takes it.

    `fingerprint` stands for everything of it that decides the code; `unfollowed` says what does so
    and is not in it, and nothing is cached then. `lower(target)` returns the module after the
    stage's graph passes, and the signature for the manifest; it is only called where nothing is
    cached. `reference(inputs, params)` is what the eager model gives, `tolerances()` how far each
    output may be from it, relative to its magnitude. `explain(found)` looks closer where that is
    not enough: it says what is wrong with outputs for `example` and the weights, None for nothing.
    `diverges(program, stage)` names the first operation whose result is wrong when it is compiled
    at that stage, None where each is right.
    """

    fingerprint: str
    lower: Callable[[Target], tuple[IRModule, dict[str, Any]]]
    weights: Weights
    example: list[Array]
    reference: Callable[[list[Array], Mapping[str, Array]], list[Array]]
    tolerances: Callable[[], list[float]]
    explain: Callable[[list[Array]], str | None]
    diverges: Callable[[Program, str], str | None]
    unfollowed: list[str] = field(default_factory=list)

    def params(self) -> dict[str, Array]:
        """The weights as NumPy arrays, as they are."""
        return {name: to_numpy(value) for name, value in self.weights.values().items()}


def to_numpy(value: Any) -> Array:
    """A Tensor, NDArray or anything NumPy understands as a NumPy array."""
    from needle_tvm.artifact.arrays import as_numpy

    return value.numpy() if hasattr(value, "numpy") else as_numpy(value, "array")
