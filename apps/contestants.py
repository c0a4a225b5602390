"""needle's own contestants, each run in a child process: the eager model, its training step, and
the compiled model (called as users call it, or its code alone).

Each function is a factory for needle_runtime.process.timing: it returns (call, outputs). It imports
only modules that the contestant needs, so that each process is like one that a user would run.
Inference calls cycle through several sets of inputs (`fresh`).
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from needle_runtime.artifact.tolerance import MODEL, compare, largest_magnitude
from needle_runtime.process.child import load_function
from needle_runtime.process.timing import Calls, ClockedCalls, Outputs, load_arrays

EAGER = "needle eager"
_NEAR_ZERO = 1e-5  # allowed error relative to the largest element, added to MODEL * magnitude
RUNTIME = ", runtime"  # suffix of a contestant that calls needle_runtime with NumPy arrays
CODE = ", code"  # suffix of a contestant whose inputs are converted or bound beforehand
SETS = 4  # number of input sets that a contestant's calls cycle through


class Disagreement(RuntimeError):
    """Two contestants' results differ; the message is one line that names them."""


def load_named(path: str) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file by name."""
    with np.load(path, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def build_model(factory: str, **options: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the model and its example inputs as a tuple, from a factory (see models/__init__.py).

    Raises ValueError for options that the factory does not name, except `state`, which it may
    ignore.
    """
    make = load_function(factory)
    known = inspect.signature(make).parameters
    if "state" not in known:
        options.pop("state", None)
    for option in options:
        if option not in known:
            raise ValueError(f"{factory.rpartition(':')[2]}() has no argument {option!r}")
    made = make(**options)
    if not isinstance(made, tuple) or len(made) != 2:
        raise ValueError(f"{factory.rpartition(':')[2]}() must return (model, example inputs)")
    model, inputs = made
    return model, tuple(inputs) if isinstance(inputs, list | tuple) else (inputs,)


def fresh(arrays: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
    """Return SETS sets of inputs in separate memory: the given arrays, then the arrays with their
    elements rolled by one position, by two, and so on. Inputs that are indices stay in range."""
    return [[np.roll(array, places) for array in arrays] for places in range(SETS)]


def calls(
    run: Callable[[Any], Any],
    sets: Sequence[Any],
    read: Callable[[Any], Outputs] | None = None,
) -> Calls:
    """Return a contestant whose calls `run` the sets of inputs one after another, in a cycle.

    Its outputs are the outputs of all sets in order; `read` turns the result of `run` into arrays
    (by default `flatten`). A call discards its result at once, without converting it.
    """
    turns = itertools.cycle(sets)
    arrays = read or flatten
    return lambda: run(next(turns)), lambda: [x for each in sets for x in arrays(run(each))]


def on_gpu(
    run: Callable[[Any], Any],
    sets: Sequence[Any],
    wait: Callable[[], object],
    read: Callable[[Any], Outputs] | None = None,
) -> ClockedCalls:
    """Return a contestant as `calls` does, for a `run` that only enqueues work on a GPU. A call
    also waits until the work has ended, and is timed by the GPU's own clock as well."""
    from needle_runtime import device_clock

    turn, outputs = calls(run, sets, read)
    return device_clock.contestant(turn, wait, outputs)


def eager(
    factory: str, options: Mapping[str, Any], weights: str, inputs: str, device: str
) -> Calls | ClockedCalls:
    """Return a contestant that calls the needle model itself, without a gradient tape."""
    import needle as ndl

    model, _, (first, *_) = load_needle(factory, options, weights, inputs, device)
    model.eval()
    place = first.device

    def run(tensors: Sequence[Any]) -> object:
        with ndl.no_grad():
            return model(*tensors)

    sets = [as_tensors(arrays, place) for arrays in fresh(load_arrays(inputs))]
    return calls(run, sets) if device == "cpu" else on_gpu(run, sets, place.synchronize)


def as_tensors(arrays: Sequence[np.ndarray], device: Any = None) -> list[Any]:
    """Return the arrays as needle Tensors without gradients."""
    import needle as ndl

    return [ndl.Tensor(array, device=device, requires_grad=False) for array in arrays]


def load_needle(
    factory: str, options: Mapping[str, Any], weights: str, inputs: str, device: str = "cpu"
) -> tuple[Any, dict[str, np.ndarray], list[Any]]:
    """Return (model with the saved weights, the weights, the saved inputs) on the device."""
    import needle as ndl

    state = load_named(weights)
    model, _ = build_model(factory, state=state, **options)
    model.load_state_dict(state)
    place = getattr(ndl, device)()
    model.to(place)
    return model, state, as_tensors(load_arrays(inputs), place)


# The learning rates of all contestants in a training contest: COMPARED_RATE for the step whose
# results are compared, TIMED_RATE for the timed steps. At the first rate, thousands of steps on one
# batch would bring the loss to zero, and gradients to denormal numbers, which are slow.
COMPARED_RATE = 1e-3
TIMED_RATE = 1e-6
MOMENTUM = 0.9


def training(
    factory: str,
    options: Mapping[str, Any],
    weights: str,
    inputs: str,
    labels: str,
    device: str = "cpu",
) -> Calls | ClockedCalls:
    """Return a contestant whose call is a training step: forward, cross entropy, backward, SGD with
    momentum.

    `labels` holds a class for each row of the scores. `step_outputs` describes the outputs.
    """
    import needle as ndl

    model, state, tensors = load_needle(factory, options, weights, inputs, device)
    model.train()
    place = tensors[0].device
    (targets,) = as_tensors(load_arrays(labels), place)
    entropy = ndl.nn.CrossEntropyLoss()

    def loss() -> Any:
        scores = model(*tensors)
        scores = scores[0] if isinstance(scores, tuple) else scores
        return entropy(scores.reshape((targets.shape[0], scores.shape[-1])), targets)

    def make(rate: float) -> Any:
        return ndl.optim.SGD(model.parameters(), lr=rate, momentum=MOMENTUM)

    def step(by: Any) -> Any:
        found = loss()
        found.backward()
        by.step()
        return found

    def outputs() -> list[np.ndarray]:
        model.load_state_dict(state)
        first = step(make(COMPARED_RATE)).numpy()
        grads = {name: p.grad.numpy() for name, p in model.named_parameters()}
        values = {name: p.numpy() for name, p in model.named_parameters()}
        timed.reset_grad()
        return step_outputs(first, grads, values, loss().numpy())

    def call() -> None:
        step(timed)
        timed.reset_grad()

    timed = make(TIMED_RATE)
    if device == "cpu":
        return call, outputs
    from needle_runtime import device_clock

    return device_clock.contestant(call, place.synchronize, outputs)


def step_outputs(
    loss: Any, grads: Mapping[str, np.ndarray], values: Mapping[str, np.ndarray], next_loss: Any
) -> list[np.ndarray]:
    """Return the outputs to compare after one step: both losses, all gradients and all weights."""

    def joined(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        return np.concatenate([arrays[name].ravel() for name in sorted(arrays)])

    return [np.asarray(loss), np.asarray(next_loss), joined(grads), joined(values)]


def executable(
    factory: str,
    options: Mapping[str, Any],
    weights: str,
    inputs: str,
    choices: Mapping[str, Any],
) -> Calls:
    """Return a contestant that calls the model, compiled by needle_tvm.compile with the keywords
    `choices`, on Tensors. The code comes from the cache if it is there."""
    import needle_tvm

    model, _, tensors = load_needle(factory, options, weights, inputs)
    model.eval()
    compiled = needle_tvm.compile(model, *tensors, **choices)
    sets = [as_tensors(arrays) for arrays in fresh(load_arrays(inputs))]
    return calls(lambda given: compiled(*given), sets)


def loaded(path: str, weights: str, inputs: str) -> ClockedCalls:
    """Return a contestant that calls exported GPU code on Tensors on the GPU. The code was exported
    without weights and gets the saved ones. Needs no compiler."""
    import needle as ndl
    import needle_tvm

    model, place = needle_tvm.load(path), ndl.cuda()
    model.set_params(load_named(weights))
    sets = [as_tensors(arrays, place) for arrays in fresh(load_arrays(inputs))]
    return on_gpu(lambda tensors: model(*tensors), sets, place.synchronize)


def program(path: str, inputs: str) -> Calls:
    """Return a contestant that calls an exported model with one NumPy array for each argument,
    without needle and without TVM's compiler."""
    import needle_runtime
    from needle_runtime.artifact import trees

    loaded = needle_runtime.load(path)
    main = loaded.artifact.main
    names = [argument["name"] for argument in main.arguments if argument.get("keyword")]
    first = len(main.arguments) - len(names)  # the number of positional arguments
    sets = [
        functools.partial(loaded, *arrays[:first], **dict(zip(names, arrays[first:], strict=True)))
        for arrays in fresh(load_arrays(inputs))
    ]

    def read(found: Any) -> Outputs:
        return list(trees.flatten(main.output_tree, found, "output"))

    return calls(lambda given: given(), sets, read)


def artifact(path: str, inputs: str) -> Calls:
    """Return a contestant that calls the code of an exported model alone: its inputs are converted
    beforehand, and its results are not converted."""
    import needle_runtime

    executor = needle_runtime.load(path).executor

    def run(tensors: Sequence[Any]) -> Any:
        found = executor.call(tensors)
        executor.synchronize()
        return found

    sets = [executor.convert(arrays) for arrays in fresh(load_arrays(inputs))]
    return calls(run, sets, executor.to_arrays)


def check_agreement(
    outputs: Mapping[str, Sequence[np.ndarray]], allowed: Mapping[str, float] | None = None
) -> None:
    """Raise Disagreement, naming the contestant, if its outputs differ from the first contestant's.

    `allowed` maps contestants that compute with less precision to their allowed error, relative to
    the largest magnitude of an output. This check finds a wrong set-up, not rounding; the parity
    ladder measures the rounding itself.
    """
    (first, expected), *others = outputs.items()
    for name, arrays in others:
        if len(arrays) != len(expected):
            raise Disagreement(f"{name} has {len(arrays)} outputs, but {first} has {len(expected)}")
        for theirs, ours in zip(arrays, expected, strict=True):
            scale = largest_magnitude(ours) or 1.0
            magnitudes = np.nan_to_num(np.abs(ours) / scale, posinf=0.0)
            bound = max(_NEAR_ZERO, (allowed or {}).get(name, 0.0)) + MODEL * magnitudes
            what = compare(ours, theirs, bound, scale=scale, same_dtype=False).what
            if what:
                raise Disagreement(f"{name} and {first} give different results: {what}")


def flatten(outputs: Any) -> list[np.ndarray]:
    """Return the arrays of an output, which may be a tensor or nested tuples, lists and dicts."""
    if isinstance(outputs, np.ndarray):
        return [outputs]
    if isinstance(outputs, dict):
        return [array for value in outputs.values() for array in flatten(value)]
    if isinstance(outputs, list | tuple):
        return [array for value in outputs for array in flatten(value)]
    return [outputs.numpy()]
