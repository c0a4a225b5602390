"""Turns a choice into one function, which has the kernels of both branches and runs one branch.

if predicate: the kernels of the true branch, in a parallel region if threads pay
else: the kernels of the false branch
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from needle_tvm._tvm.names import PrimFunc, Target, tirx
from needle_tvm.lower.bodies import Body
from needle_tvm.lower.frame import ZERO, Frame, Plan, Shaped, copied, spec_of
from needle_tvm.tir import regions

Branch = tuple[Body, Sequence[Any], Sequence[Any]]


def choice_function(
    branches: tuple[Branch, Branch],
    inputs: Sequence[Shaped],
    results: Sequence[Shaped],
    target: Target,
    add: Callable[[PrimFunc], Any],
    alone: bool,
) -> Plan:
    """Return the function of a choice. It takes a predicate, `inputs` and constants. Each branch
    comes with the keys of its inputs and the keys of its results. `add` adds called functions to
    the module. With `alone`, the function runs on one thread."""
    constants = [key for body, known, ends in branches for key in body.constants(known, ends)]
    constants = list(dict.fromkeys(constants))
    shapes = [shape for shape, _ in (*inputs, *results, *map(spec_of, constants))]
    frame = Frame([body for body, _, _ in branches], shapes, add)
    predicate, *given = (frame.parameter(f"x{n}", spec) for n, spec in enumerate(inputs))
    out = [frame.parameter(f"y{n}", spec) for n, spec in enumerate(results)]
    places = frame.places
    fixed = [frame.parameter(f"c{n}", spec_of(key)) for n, key in enumerate(constants)]
    places.update({key: (frame.flat(b), ZERO) for key, b in zip(constants, fixed, strict=True)})
    flat = list(map(frame.flat, given))
    outputs = list(map(frame.flat, out))
    copies: list[list[Any]] = []
    for body, known, ends in branches:
        places.update({key: (buffer, ZERO) for key, buffer in zip(known, flat, strict=True)})
        later = []
        for key, buffer, (shape, _) in zip(ends, outputs, results, strict=True):
            if key in body.made and key not in places:
                places[key] = buffer, ZERO
            else:
                later.append((key, (buffer, ZERO), frame.size(shape)))
        copies.append(later)
    frame.place_others()
    sides = []
    for (body, _, _), later in zip(branches, copies, strict=True):
        phases, several = frame.phases(body, target, alone, repeated=False)
        statements = regions.region(phases) if several else [n for p in phases for n in p]
        statements += [copied(places[key], to, size) for key, to, size in later]
        sides.append(regions.in_sequence(statements) if statements else tirx.Evaluate(0))
    choice = tirx.IfThenElse(frame.flat(predicate)[ZERO], *sides)
    function = frame.function([predicate, *given, *fixed], out, [choice])
    return frame.plan(function, constants)
