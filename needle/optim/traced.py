"""Record an optimizer's step in a trace, as the ops of its formula.

The state of an optimizer consists of arrays; the compiled code writes into their memory. Learning
rates and the numbers of steps are arrays too: before each call, the rates are set to their current
values, and one array counts the steps of all parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ..autograd.tensor import Tensor, make_const
from ..backend_ndarray import NDArray, zeros
from ..backend_ndarray.dtypes import compute_dtype
from ..common.state import Recorder
from ..errors import TraceError
from ..ops._update import TENSORS, Update
from ..ops.elementwise import cast

# Optimizers import this file, so it cannot import the type Optimizer.


def record_step(optimizer: Any, trace: Recorder) -> None:
    """Record one step of every parameter that has a gradient. Raises TraceError for an optimizer
    whose step is not an op."""
    if not trace.records_writes:
        trace.refuse_write(optimizer.params[0])
    groups = len(optimizer.param_groups)
    trace.guard(lambda: len(optimizer.param_groups) == groups, always=True)
    stepped: list[int] = []
    for number, group in enumerate(optimizer.param_groups):
        chosen = [i for i in group.numbers if optimizer.params[i].grad is not None]
        if not chosen:
            continue
        options = group.options
        rule, goes_up = optimizer._rule(options), options.maximize
        if not isinstance(rule, Update):
            raise computed_by_python(optimizer)
        trace.guard(_same_rule(optimizer, group, rule, goes_up), always=True)
        rate = _rate(optimizer, group, f"lr.{number}" if number else "lr", trace)
        for i in chosen:
            if i not in optimizer.state:
                trace.on_failure(partial(_forget, optimizer, i))
            optimizer._kept(i, rule, options)
        counts = trace.array(optimizer, "steps", lambda: optimizer._counts)
        for alike in _alike(optimizer, chosen):
            trace.guard(_equally_often(optimizer, alike))
            done = cast(counts[alike[0]], "float64")
            numbers = rule.scalars(rate, done, TENSORS)
            for i in alike:
                _one(optimizer, trace, i, rule, goes_up, numbers)
        stepped += chosen
    if stepped:
        counts = trace.array(optimizer, "steps", lambda: optimizer._counts)
        add = np.zeros(len(optimizer.params), "int64")
        add[stepped] = 1
        trace.write(counts, counts + make_const(add, counts.device))


def computed_by_python(optimizer: Any) -> TraceError:
    """Return the error for an optimizer whose step is not an op."""
    return TraceError(
        f"tracing: a step of {type(optimizer).__name__} is computed by Python and cannot be "
        "compiled: return the gradients, and take the step outside"
    )


def _one(
    optimizer: Any,
    trace: Recorder,
    i: int,
    rule: Update,
    goes_up: bool,
    numbers: tuple[Any, ...],
) -> None:
    """Record the step of one parameter; `numbers` are the scalars of its formula, in float64."""
    param = optimizer.params[i]
    grad: Any = param.grad
    label = trace.name_of(param) or i

    def state_of(name: str) -> Callable[[], NDArray]:
        return lambda: optimizer.state[i][name]

    states = {
        name: trace.array(optimizer, f"{label}.{name}", state_of(name)) for name in rule.states
    }
    dtype = compute_dtype(param.dtype)
    p, g = cast(param, dtype), cast(-grad if goes_up else grad, dtype)
    scalars = [cast(each, dtype) if isinstance(each, Tensor) else each for each in numbers]
    new, after = rule.formula(TENSORS, p, g, states, *scalars)
    # Write the parameter first: its new value may need the old state, which the next lines
    # overwrite.
    trace.write(param, cast(new, param.dtype))
    for name, value in after.items():
        trace.write(states[name], value)


def _forget(optimizer: Any, i: int) -> None:
    """Drop the state that was created for a step of parameter `i`."""
    optimizer.state.pop(i, None)
    optimizer._steps.pop(i, None)


def _alike(optimizer: Any, chosen: list[int]) -> list[list[int]]:
    """Group the `chosen` parameters by the number of steps that they have taken."""
    counts = optimizer._steps
    found: dict[int, list[int]] = {}
    for i in chosen:
        found.setdefault(counts[i][0], []).append(i)
    return list(found.values())


def _equally_often(optimizer: Any, numbers: list[int]) -> Callable[[], bool]:
    """Return a check that these parameters have taken the same number of steps."""

    def holds() -> bool:
        counts = optimizer._steps
        return all(i in counts for i in numbers) and len({counts[i][0] for i in numbers}) == 1

    return holds


def _same_rule(optimizer: Any, group: Any, rule: Update, goes_up: bool) -> Callable[[], bool]:
    """Return a check that the options of a group have not changed."""

    def holds() -> bool:
        options = group.options
        now = optimizer._rule(options)
        return (now is rule or now == rule) and options.maximize == goes_up

    return holds


def _rate(optimizer: Any, group: Any, name: str, trace: Recorder) -> Tensor:
    """Return the learning rate of a group at this point of a call, as an array."""
    array = zeros((), "float64", optimizer._counts.device)
    memory, own = np.from_dlpack(array).reshape(1).data, group.own

    def read() -> None:
        memory[0] = own["lr"] if "lr" in own else optimizer.lr

    # A schedule may step between two steps of an optimizer, so each step has its own array.
    number = trace.at_each_call(read, feeds=True)
    return trace.array(optimizer, f"{name}.{number}", lambda: array)
