"""Turns a loop with a condition into one function: the kernels of its test and of its body.

copy the initial states
for t in range(forever):  # one parallel region, if threads pay off
    the kernels of the test
    if not the test's result: break
    the kernels of a step; each state alternates between two slots
copy the final states
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from needle_tvm._tvm.names import PrimFunc, Target, tirx
from needle_tvm.lower.bodies import Body
from needle_tvm.lower.frame import ZERO, Frame, Place, Plan, Shaped, copied, spec_of
from needle_tvm.lower.loops import Slots, place_next
from needle_tvm.tir import regions

_FOREVER = tirx.const(1 << 62, "int64")


def while_function(
    test: tuple[Body, Sequence[Any], Any],
    step: tuple[Body, Sequence[Any], Sequence[Any]],
    specs: Sequence[Shaped],
    target: Target,
    add: Callable[[PrimFunc], Any],
    alone: bool,
) -> Plan:
    """Return the function of a loop whose states have these `specs`. Each body comes with the keys
    of the states that it reads and the keys of its results. `add` adds called functions to the
    module. With `alone`, the function runs on one thread."""
    of_test, tested, keep = test
    of_step, befores, afters = step
    constants = list(
        dict.fromkeys([*of_test.constants(tested, [keep]), *of_step.constants(befores, afters)])
    )
    shapes = [shape for shape, _ in (*specs, *map(spec_of, constants))]
    frame = Frame([of_test, of_step], shapes, add)
    t = tirx.Var("t", "int64")
    first = [frame.parameter(f"s{n}", spec) for n, spec in enumerate(specs)]
    last = [frame.parameter(f"e{n}", spec) for n, spec in enumerate(specs)]
    slots = Slots(frame, specs, t)
    places = frame.places
    for befores_of in (tested, befores):
        places.update({before: slots.before(n) for n, before in enumerate(befores_of)})
    fixed = [frame.parameter(f"c{n}", spec_of(key)) for n, key in enumerate(constants)]
    places.update({key: (frame.flat(b), ZERO) for key, b in zip(constants, fixed, strict=True)})
    _, others = place_next(frame, slots, befores, afters, of_step.made)
    frame.place_others()
    steps = frame.workspace("steps", "int64", tirx.const(1, "int64"))
    late = [copied(places[afters[n]], slots.after(n), slots.sizes[n]) for n in others]
    count = tirx.BufferStore(steps, t + 1, [ZERO])

    tests, several_test = frame.phases(of_test, target, alone)
    bodies, several_body = frame.phases(of_step, target, alone)
    several = several_test or several_body
    bodies = [*bodies, [*late, count]]
    statements = [
        *slots.filled(list(map(frame.flat, first))),
        tirx.BufferStore(steps, ZERO, [ZERO]),
        *regions.loop(
            t,
            _FOREVER,
            [
                *regions.steps_of(tests, several),
                tirx.IfThenElse(tirx.Not(_holds(places[keep])), _break(), None),
                *regions.steps_of(bodies, several),
            ],
            several,
        ),
        *slots.emptied(dict(enumerate(map(frame.flat, last))), steps[ZERO]),
    ]
    return frame.plan(frame.function([*first, *fixed], last, statements), constants)


def _holds(place: Place) -> Any:
    return place[0][place[1]]


def _break() -> Any:
    return tirx.Evaluate(tirx.break_loop())
