"""Export a jit function as an artifact: a training step that continues without needle.

All values that the function writes become the artifact's state. Learning rates, which Python sets
before each call, become a table with a row for each call; the number of calls is part of the state.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from needle import Tensor
from needle.autograd.dispatch import apply
from needle.backend_ndarray.dtypes import is_floating
from needle.optim.schedules import Schedule
from needle.sizes.dims import Expression
from needle.sizes.extents import at_sizes
from needle.trace import Graph, trace_flat
from needle.trace.writes import Effects, Slot
from needle_runtime.errors import UsageError
from needle_runtime.state import OwnState
from needle_tvm.compiler.compiler import compile_source
from needle_tvm.compiler.executable import Executable
from needle_tvm.compiler.request import Request
from needle_tvm.frontend.model import source_of

CALLS = "calls"  # the name of the state that counts calls


class Traced(NamedTuple):
    """`jit`'s trace of one signature: the graph, without the arguments of the traced call, and the
    form of a call."""

    graph: Graph
    trees: Sequence[Any]  # structures of the arguments, positional ones first
    positional: int  # number of arguments by position
    keywords: Sequence[str]
    output_tree: Any
    signature: inspect.Signature | None


def executable(traced: Traced, asked: Request, calls: int | None) -> Executable:
    """Compile the function, with all values that it writes as state.

    `calls` is the number of calls for which learning rates are stored. Raises UsageError if the
    rates change and `calls` is not given."""
    effects = traced.graph.effects
    rates = _rates(effects, calls)
    graph = _with_own_rates(traced.graph, rates)
    names = [slot.name for slot in graph.effects.kept]
    trees, count = list(traced.trees), traced.positional
    graph.input_tree = {
        "args": trees[:count],
        "kwargs": dict(zip(traced.keywords, trees[count:], strict=True)),
    }
    graph.signature, graph.output_tree = traced.signature, traced.output_tree
    found = compile_source(source_of(graph, asked.variant), asked)
    if not names:
        return found
    state = [np.array(slot.find().numpy()) for slot in graph.effects.kept]
    return found.with_state(OwnState(dict(zip(names, state, strict=True))))


def _rates(effects: Effects, calls: int | None) -> np.ndarray[Any, Any]:
    """Return the numbers that are fed to `calls` calls, one row per call: (calls, numbers)."""
    owners = [getattr(do, "__self__", None) for do in effects.actions]
    schedules = [each for each in owners if isinstance(each, Schedule)]
    if calls is None and schedules:
        names = ", ".join(sorted({type(each).__name__ for each in schedules}))
        raise UsageError(
            f"export: the function steps a schedule ({names}), which is Python code: give calls=, "
            "the number of calls for which its rates are kept; later calls use the last rate"
        )
    touched = [each for each in owners if each is not None]
    touched += [schedule.optimizer for schedule in schedules]
    groups = [group for each in schedules for group in each.optimizer.param_groups]
    before = [(each, dict(vars(each))) for each in touched]
    own = [(group, dict(group.own)) for group in groups]
    numbers = [slot for slot in effects.fed if _is_number(slot.find())]
    rows = []
    try:
        for _ in range(calls or 1):
            for do in effects.actions[: effects.feeding]:
                do()
            rows.append([float(slot.find().item()) for slot in numbers])
            effects.end()
    finally:
        for each, values in before:
            vars(each).update(values)
        for group, values in own:
            group.own.clear()
            group.own.update(values)
    return np.array(rows, "float64").reshape(len(rows), len(numbers))


def _is_number(value: Any) -> bool:
    """Return whether an array may be a learning rate; other arrays are only read, like weights."""
    return value.ndim == 0 and value.dtype == "float64"


def _with_own_rates(graph: Graph, rates: np.ndarray[Any, Any]) -> Graph:
    """Return the graph with the numbers that it is fed replaced by a table, and the other arrays
    that it is fed replaced by weights."""
    effects, leaves = graph.effects, graph.inputs
    kept, own = len(effects.kept), len(leaves) - len(effects.fed) - len(effects.kept)
    numbers, read = [], []
    for leaf, slot in zip(leaves[own : len(leaves) - kept], effects.fed, strict=True):
        value = slot.find()
        if _is_number(value):
            numbers.append(leaf)
        else:
            read.append((leaf, value))
    draw = np.random.default_rng(0)
    sizes = {dim: min(dim.max, max(dim.min, 2 * dim.multiple_of)) for dim in graph.dims}
    given: list[tuple[str, Any]] = [
        (leaf.name, _example(at_sizes(leaf.spec, sizes), draw)) for leaf in leaves[:own]
    ]
    dims = {
        leaf.name: {a: n for a, n in enumerate(leaf.spec.shape) if isinstance(n, Expression)}
        for leaf in leaves[:own]
    }
    state: list[tuple[str, Any]] = [(slot.name, slot.find()) for slot in effects.kept]
    has_table = bool(numbers)
    if has_table:
        state.insert(0, (CALLS, np.array(0, "int64")))
    weights = {name: (_weight(value), None) for name, value in graph.weights.values().items()}
    weights |= {leaf.name: (_weight(value), None) for leaf, value in read}
    inputs = [*leaves[:own], *numbers, *leaves[len(leaves) - kept :]]
    table = Tensor(rates, requires_grad=False)

    def call(tensors: Sequence[Tensor]) -> list[Tensor]:
        mine, rest = list(tensors[:own]), list(tensors[own:])
        now: list[Tensor] = []
        after: list[Tensor] = []
        if has_table:
            done = rest.pop(0)
            row = table.take(done.clip(max=len(rates) - 1), 0)
            now, after = [row[i] for i in range(len(numbers))], [done + 1]
        values = {leaf.node: x for leaf, x in zip(inputs, [*mine, *now, *rest], strict=True)}
        values |= {leaf.node: weights[leaf.name][0] for leaf in graph.params}
        values |= {leaf.node: weights[leaf.name][0] for leaf, _ in read}
        values |= {leaf.node: Tensor(leaf.value, requires_grad=False) for leaf in graph.constants}
        for node in graph.nodes:
            if node.op is not None:
                values[node] = apply(node.op, tuple([values[each] for each in node.input_nodes]))
        results = [values[node] for node in graph.outputs]
        first = len(results) - kept
        return [*results[:first], *after, *results[first:]]

    open_axes = {name: axes for name, axes in dims.items() if axes}
    result = trace_flat(
        call, [*given, *state], lambda: weights, follow_all=True, dims=open_axes or None
    )
    slots = [Slot(CALLS, lambda: Tensor(np.array(0, "int64")).cached_data)] * has_table
    result.effects.kept = [*slots, *effects.kept]
    return result


def _example(spec: Any, draw: np.random.Generator) -> np.ndarray[Any, Any]:
    """Return an array of this spec: normally distributed floats, or else zeros, which are always
    valid as indices."""
    if is_floating(spec.dtype):
        return draw.standard_normal(spec.shape).astype(spec.dtype)
    return np.zeros(spec.shape, spec.dtype)


def _weight(value: Any) -> Tensor:
    return Tensor(value, requires_grad=False)
