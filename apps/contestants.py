"""What a contest's child processes run for needle itself: the eager model and a compiled artifact.

Each function is a factory of needle_tvm.timing: it returns (call, outputs). Nothing is imported
that the contestant does not need, so that each process is the one a user would run.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from needle_tvm.child import load_function

Contestant = tuple[Callable[[], object], Callable[[], list[np.ndarray]]]


class Disagreement(RuntimeError):
    """Two contestants do not compute the same; one line that names them."""


def save_arrays(path: str, arrays: Mapping[str, np.ndarray]) -> None:
    """An .npz file of the arrays under their own names."""
    named: dict[str, Any] = dict(arrays)
    np.savez(path, **named)


def load_arrays(path: str) -> list[np.ndarray]:
    """The arrays of an .npz file in the order they were saved."""
    with np.load(path, allow_pickle=False) as arrays:
        return [arrays[name] for name in arrays.files]


def build_model(factory: str, **options: Any) -> tuple[Any, tuple[Any, ...]]:
    """The model and its example inputs as a tuple, from a factory (see models/__init__.py).

    Options that the factory does not name are refused with a ValueError, except `state`, which
    only matters to those that do.
    """
    make = load_function(factory)
    known = inspect.signature(make).parameters
    if "state" not in known:
        options.pop("state", None)
    for option in options:
        if option not in known:
            raise ValueError(f"{factory.rpartition(':')[2]}() takes no {option!r}")
    made = make(**options)
    if not isinstance(made, tuple) or len(made) != 2:
        raise ValueError(f"{factory.rpartition(':')[2]}() must return (model, example inputs)")
    model, inputs = made
    return model, tuple(inputs) if isinstance(inputs, list | tuple) else (inputs,)


def eager(
    factory: str, options: Mapping[str, Any], weights: str, inputs: str, device: str
) -> Contestant:
    """The needle model itself, without a gradient tape."""
    import needle as ndl

    with np.load(weights, allow_pickle=False) as arrays:
        state = {name: arrays[name] for name in arrays.files}
    model, _ = build_model(factory, state=state, **options)
    model.load_state_dict(state)
    model.eval()
    place = getattr(ndl, device)()
    model.to(place)
    tensors = [
        ndl.Tensor(array, device=place, requires_grad=False) for array in load_arrays(inputs)
    ]

    def call() -> object:
        with ndl.no_grad():
            return model(*tensors)

    return call, lambda: flatten(call())


def artifact(path: str, inputs: str) -> Contestant:
    """An exported model, run without needle and without TVM's compiler."""
    from needle_tvm import runtime

    program = runtime.load(path)
    arrays = load_arrays(inputs)
    tensors = program.convert(arrays)
    return lambda: program.call(tensors), lambda: program.run(arrays)


def check_agreement(outputs: Mapping[str, Sequence[np.ndarray]]) -> None:
    """Raises Disagreement naming a contestant whose outputs are not the first one's.

    This tells a wrong set-up from rounding; the parity ladder is what measures the rounding.
    """
    (first, expected), *others = outputs.items()
    for name, arrays in others:
        if len(arrays) != len(expected):
            raise Disagreement(f"{name} gives {len(arrays)} outputs, {first} {len(expected)}")
        for theirs, ours in zip(arrays, expected, strict=True):
            scale = float(np.max(np.abs(ours), initial=0.0)) or 1.0
            close = theirs.shape == ours.shape and np.allclose(
                theirs, ours, rtol=1e-4, atol=1e-5 * scale, equal_nan=True
            )
            if not close:
                raise Disagreement(f"{name} computes something else than {first}")


def flatten(outputs: Any) -> list[np.ndarray]:
    """The arrays of an output that may be a tensor or nested tuples, lists and dicts of them."""
    if isinstance(outputs, np.ndarray):
        return [outputs]
    if isinstance(outputs, dict):
        return [array for value in outputs.values() for array in flatten(value)]
    if isinstance(outputs, list | tuple):
        return [array for value in outputs for array in flatten(value)]
    return [outputs.numpy()]
