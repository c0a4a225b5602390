"""The golden example of an artifact: inputs, and the outputs recorded for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Golden:
    """Inputs and outputs in the order of the signature.

    `source` is what computed the outputs: "eager" for the model itself, or "compiled" if the model
    was not available. `tolerances` has, for each output, the allowed difference from the recorded
    one, relative to its largest magnitude. `others` are examples of other sizes, if sizes are left
    to the call.
    """

    inputs: Sequence[Array]
    outputs: Sequence[Array]
    source: str
    tolerances: Sequence[float]
    others: Sequence[Golden] = ()

    def arrays(self) -> dict[str, Array]:
        """Return the arrays by their names in the file."""
        return {
            f"{_prefix(number)}{kind}.{i}": array
            for number, each in enumerate((self, *self.others))
            for kind, arrays in (("input", each.inputs), ("output", each.outputs))
            for i, array in enumerate(arrays)
        }

    def facts(self) -> dict[str, Any]:
        """Return the manifest's entry about the example."""
        facts: dict[str, Any] = {"source": self.source, "tolerances": list(self.tolerances)}
        if self.others:
            facts["others"] = [list(each.tolerances) for each in self.others]
        return facts


def _prefix(number: int) -> str:
    """Return the prefix of the array names of example `number`; the first example has none."""
    return f"{number}." if number else ""


def of_arrays(
    arrays: Mapping[str, Array], facts: Mapping[str, Any], inputs: int, outputs: int
) -> Golden:
    """Return the example from a file's arrays and the manifest's entry. Raises ValueError unless
    each example has arrays for `inputs` inputs and `outputs` outputs."""
    tolerances = [facts["tolerances"], *facts.get("others", ())]
    names = [
        [[f"{_prefix(number)}{kind}.{i}" for i in range(count)] for kind, count in kinds]
        for kinds in [(("input", inputs), ("output", outputs))]
        for number in range(len(tolerances))
    ]
    if set(arrays) != {name for pair in names for kind in pair for name in kind}:
        raise ValueError("does not hold this model's inputs and outputs")
    first, *others = [
        Golden([arrays[n] for n in given], [arrays[n] for n in wanted], str(facts["source"]), each)
        for (given, wanted), each in zip(names, tolerances, strict=True)
    ]
    return replace(first, others=tuple(others))
