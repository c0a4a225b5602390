"""The golden example of an artifact: inputs, and the outputs recorded for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Golden:
    """Inputs and outputs in the order of the signature.

    `source` says what computed the outputs: "eager", the model itself, or "compiled" if the model
    was not at hand. `tolerances` is how far each output may lie from the recorded one, relative to
    its largest magnitude.
    """

    inputs: Sequence[Array]
    outputs: Sequence[Array]
    source: str
    tolerances: Sequence[float]

    def arrays(self) -> dict[str, Array]:
        """The arrays by their names in the file."""
        return {
            **{f"input.{i}": array for i, array in enumerate(self.inputs)},
            **{f"output.{i}": array for i, array in enumerate(self.outputs)},
        }

    def facts(self) -> dict[str, Any]:
        """The manifest's entry."""
        return {"source": self.source, "tolerances": list(self.tolerances)}


def of_arrays(
    arrays: Mapping[str, Array], facts: Mapping[str, Any], inputs: int, outputs: int
) -> Golden:
    """The example that a file's arrays and a manifest's entry make; ValueError unless the arrays
    are those of so many inputs and outputs."""
    given = [f"input.{i}" for i in range(inputs)]
    wanted = [f"output.{i}" for i in range(outputs)]
    if set(arrays) != {*given, *wanted}:
        raise ValueError("does not hold this model's inputs and outputs")
    return Golden(
        [arrays[name] for name in given],
        [arrays[name] for name in wanted],
        str(facts["source"]),
        facts["tolerances"],
    )
