"""Shrink a failing program: fewer outputs, fewer steps, smaller leaves, with the same failure.

`failures` calls `shrunk`. The method is delta debugging (Zeller and Hildebrandt, "Simplifying and
Isolating Failure-Inducing Input", IEEE TSE 28, 2002).
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from needle.backend_ndarray.dtypes import is_floating
from needle.trace import trace
from needle_tvm.check.campaign.program import INPUT, Leaf, Program, Step
from needle_tvm.check.campaign.sizes import names_in

Fails = Callable[[Program], bool]


def shrunk(program: Program, fails: Fails) -> Program:
    """Return the smallest program found that `fails` in the same way as `program`."""
    specs = _specs(program)
    if specs is not None and len(program.steps) > 1:
        alone = (_alone(program, index, specs) for index in range(len(program.steps)))
        program = next((each for each in alone if fails(each)), program)
    changed = True
    while changed:
        changed = False
        for candidate in itertools.chain(_smaller(program), _smaller_extents(program)):
            if fails(candidate):
                program, changed = candidate, True
                break
    return program


def _smaller(program: Program) -> Iterator[Program]:
    """Yield programs with fewer parts, the largest changes first."""
    if len(program.outputs) > 1:
        for number in program.outputs:
            yield _pruned(dataclasses.replace(program, outputs=(number,)))
        for drop in range(len(program.outputs)):
            kept = program.outputs[:drop] + program.outputs[drop + 1 :]
            yield _pruned(dataclasses.replace(program, outputs=kept))
    for size in program.dims:
        yield program.without_dim(size)
    if program.gradient:
        yield dataclasses.replace(program, gradient=())
    if len(program.gradient) > 1:
        for number in program.gradient:
            yield dataclasses.replace(program, gradient=(number,))
    specs = _specs(program)
    if specs is None:
        return
    step_results = _made(program)
    # Replace an output by an operand of its step; then replace the results of a step by leaves.
    for number in program.outputs:
        step = next(
            (
                s
                for s, results in zip(program.steps, step_results, strict=True)
                if number in results
            ),
            None,
        )
        for operand in () if step is None else step.operands:
            outputs = tuple(operand if o == number else o for o in program.outputs)
            yield _pruned(dataclasses.replace(program, outputs=outputs))
    order = list(range(len(program.steps)))
    random.Random(0).shuffle(order)
    for index in order:
        yield _pruned(_without(program, {index}, specs))
    for index, step in enumerate(program.steps):
        if step.results == 1:
            for operand in step.operands:
                if specs[operand] == specs[step_results[index][0]]:
                    yield _pruned(_renamed(program, step_results[index][0], operand))
    for i, leaf in enumerate(program.leaves):
        simpler = dataclasses.replace(leaf, kind=INPUT, special=False)
        if simpler != leaf:
            leaves = (*program.leaves[:i], simpler, *program.leaves[i + 1 :])
            yield dataclasses.replace(program, leaves=leaves)


def _made(program: Program) -> list[tuple[int, ...]]:
    """Return the numbers of the values that each step computes."""
    numbers, at = [], len(program.leaves)
    for step in program.steps:
        numbers.append(tuple(range(at, at + step.results)))
        at += step.results
    return numbers


Spec = tuple[tuple[int | str, ...], str]


def _specs(program: Program) -> dict[int, Spec] | None:
    """Return the shape and dtype of every value, or None if the program cannot be traced."""
    count = len(program.leaves) + sum(step.results for step in program.steps)
    every = dataclasses.replace(program, outputs=tuple(range(count)), gradient=())
    try:
        model, inputs = every.load()
        graph = trace(model, *inputs, dims=every.at_sizes()[0])
    except Exception:  # such a program is shrunk in other ways
        return None
    specs = [spec for node in graph.outputs for spec in node.specs]
    return {i: (_written(spec.shape), spec.dtype) for i, spec in enumerate(specs)}


def _written(shape: Iterable[Any]) -> tuple[int | str, ...]:
    return tuple(n if isinstance(n, int) else repr(n) for n in shape)


def _alone(program: Program, index: int, specs: dict[int, Spec]) -> Program:
    """Return a program of one step that reads leaves, with all its results and, if needed,
    gradients."""
    others = set(range(len(program.steps))) - {index}
    outputs = _made(program)[index]
    one = dataclasses.replace(program, outputs=outputs, gradient=())
    one = _pruned(_without(one, others, specs))
    if program.gradient:
        floats = [i for i, leaf in enumerate(one.leaves) if is_floating(leaf.dtype)]
        one = dataclasses.replace(one, gradient=tuple(floats))
    return one


def _without(program: Program, gone: set[int], specs: dict[int, Spec]) -> Program:
    """Return the program with the results of some steps replaced by leaves."""
    made, leaves = _made(program), list(program.leaves)
    numbers = {i: i for i in range(len(leaves))}
    for number in (number for index in sorted(gone) for number in made[index]):
        shape, dtype = specs[number]
        numbers[number] = len(leaves)
        low, high = (0.0, 2.0) if dtype.startswith("int") else (-2.0, 2.0)
        leaves.append(Leaf(INPUT, shape, dtype, number, low, high))
    kept = [index for index in range(len(made)) if index not in gone]
    for at, number in enumerate(number for index in kept for number in made[index]):
        numbers[number] = len(leaves) + at
    return _renumbered(program, leaves, kept, numbers)


def _renumbered(
    program: Program, leaves: list[Leaf], steps: list[int], numbers: dict[int, int]
) -> Program:
    return dataclasses.replace(
        program,
        leaves=tuple(leaves),
        steps=tuple(
            dataclasses.replace(
                program.steps[i], operands=tuple(numbers[o] for o in program.steps[i].operands)
            )
            for i in steps
        ),
        outputs=tuple(numbers[o] for o in program.outputs),
        gradient=tuple(numbers[o] for o in program.gradient),
    )


def _renamed(program: Program, number: int, other: int) -> Program:
    """Return the program with value `number` replaced by `other` wherever it is read."""

    def name(o: int) -> int:
        return other if o == number else o

    steps = [Step(s.expression, tuple(map(name, s.operands)), s.results) for s in program.steps]
    return dataclasses.replace(
        program, steps=tuple(steps), outputs=tuple(map(name, program.outputs))
    )


def _pruned(program: Program) -> Program:
    """Return the program without the steps, leaves and dims that no output needs."""
    step_results = _made(program)
    needed = {*program.outputs, *program.gradient}
    for step, results in zip(reversed(program.steps), reversed(step_results), strict=True):
        if needed & set(results):
            needed.update(step.operands)
    kept = [i for i, results in enumerate(step_results) if needed & set(results)]
    leaves = [i for i in range(len(program.leaves)) if i in needed]
    texts = [
        *(program.leaves[i].shape for i in leaves),
        *(program.steps[i].expression for i in kept),
    ]
    for name in sorted(names_in(texts)):  # each dim must be the size of an input axis
        if not any(name in program.leaves[i].shape for i in leaves):
            leaves.append(next(i for i, leaf in enumerate(program.leaves) if name in leaf.shape))
    if not any(program.leaves[i].kind == INPUT for i in leaves):
        leaves = [i for i, leaf in enumerate(program.leaves) if leaf.kind == INPUT][:1] + leaves
    order = [*leaves, *(number for i in kept for number in step_results[i])]
    numbers = {number: i for i, number in enumerate(order)}
    pruned = _renumbered(program, [program.leaves[i] for i in leaves], kept, numbers)
    return pruned.with_used_dims()


def _smaller_extents(program: Program) -> Iterator[Program]:
    """Yield programs with a leaf that is smaller along one axis; in most, shapes no longer fit."""
    for i, leaf in enumerate(program.leaves):
        for axis, extent in enumerate(leaf.shape):
            if isinstance(extent, str):
                continue
            for fewer in {1, extent // 2, extent - 1} - {extent, 0}:
                shape = (*leaf.shape[:axis], fewer, *leaf.shape[axis + 1 :])
                leaves = list(program.leaves)
                leaves[i] = dataclasses.replace(leaf, shape=shape)
                yield dataclasses.replace(program, leaves=tuple(leaves))
