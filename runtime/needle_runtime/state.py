"""State of a model: arrays that each call reads and writes, besides its inputs and results.

The code itself is a pure function. Its arguments are the inputs, then the state; it returns the
results, then the new state. `stepped` makes a call and keeps the new state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from needle_runtime.artifact.arrays import as_numpy
from needle_runtime.artifact.trees import flatten
from needle_runtime.calls import Calls
from needle_runtime.executor import Executor
from needle_runtime.inputs import destinations
from needle_runtime.process.turns import turn_of


class State(Protocol):
    """The state of a model, wherever it is kept. Only one call at a time uses it."""

    @property
    def key(self) -> object:
        """A key that is the same for all calls that use this state."""

    @property
    def in_place(self) -> bool:
        """Whether compiled code may write to the arrays themselves."""

    def values(self) -> Sequence[Any]:
        """Return the current arrays."""

    def write(self, values: Sequence[Any]) -> None:
        """Keep new values: arrays, or None for arrays that the code has updated in place."""


class OwnState:
    """State in host memory that a compiled model keeps for itself."""

    in_place = True

    def __init__(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
        self._arrays = {name: np.array(array) for name, array in arrays.items()}

    @property
    def key(self) -> object:
        """A key that is unique to this object."""
        return "state", id(self)

    def values(self) -> list[np.ndarray[Any, Any]]:
        """Return the current arrays."""
        return list(self._arrays.values())

    def arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return copies of the current arrays, by name."""
        with turn_of(self.key):
            return {name: np.array(array) for name, array in self._arrays.items()}

    def replace(self, values: Sequence[Any]) -> None:
        """Copy new values into the arrays while no call uses them."""
        with turn_of(self.key):
            self.write(values)

    def write(self, values: Sequence[Any]) -> None:
        """Copy new values into the arrays, except where a value is None."""
        for array, value in zip(self._arrays.values(), values, strict=True):
            if value is not None:
                array[...] = as_numpy(value, "state")


def stepped(
    executor: Executor, calls: Calls, state: State, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Call a model with state through `calls`; return results in the model's structure, or `out`.

    Raises the errors of `calls`; the state is then unchanged. If the code can, it writes the state
    in place.
    """
    main, named = executor.main, dict(kwargs)
    takes_out = any(argument["name"] == "out" for argument in main.arguments)
    out = None if takes_out else named.pop("out", None)
    values, count = main.flatten(args, named), len(main.outputs) - len(main.state)
    with turn_of(state.key):
        inputs = [*values, *state.values()]
        targets = None
        if out is not None:
            outputs = list(flatten(main.output_tree, out, "out"))
            targets = destinations(outputs, executor.results_for(inputs)[:count], inputs)
        results = calls.run_in_place(inputs) if main.in_place and state.in_place else None
        if results is None:
            results = calls.run(inputs)
        state.write(results[count:])
    if targets is None:
        return main.unflatten(results[:count])
    for array, result in zip(targets, results, strict=False):
        array[...] = as_numpy(result, "result")
    return out
