"""Turns a scan into one function, which runs the kernels of the scan's body, step after step.

The body of a `needle.scan` is lowered and scheduled like a separate model, so that its products
read packed weights and its elementwise work is fused. Values that depend only on constants, such as
packed weights, are computed before the loop. The kernels become one function:

    copy the initial states
    for t in range(length):  # one parallel region with barriers between phases, if threads pay off
        the kernels of a step; each state alternates between two slots; slices and outputs at t
    copy the final states

A loop on one thread has no region and no barriers. A loop inside a loop's body runs on one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from needle_tvm._tvm.names import PrimFunc, Target, tirx
from needle_tvm.lower.bodies import Body
from needle_tvm.lower.frame import ZERO, Frame, Place, Plan, Shaped, Specs, copied, spec_of
from needle_tvm.tir import regions

TWO = tirx.const(2, "int64")


@dataclass(frozen=True)
class Layout:
    """The values that a loop's function takes and returns, by their keys in the body. `states` has
    a pair for each state: before and after a step. `last` has the numbers of the states whose final
    values are returned. `slices` are slices of sequences; `stacked` are the values to stack.
    `specs` has the shape and dtype of each value, in TVM expressions."""

    states: Sequence[tuple[Any, Any]]
    last: Sequence[int]
    slices: Sequence[Any]
    stacked: Sequence[Any]
    specs: Specs
    length: Any
    reverse: bool


class Slots:
    """The memory of states. Each has two slots: a step reads one and writes the other, and the next
    step swaps them."""

    def __init__(self, frame: Frame, specs: Sequence[Shaped], t: Any) -> None:
        self._t = t
        self.sizes = [frame.size(shape) for shape, _ in specs]
        self.memories = [
            frame.workspace(f"state{n}", dtype, TWO * size)
            for n, (size, (_, dtype)) in enumerate(zip(self.sizes, specs, strict=True))
        ]

    def at(self, number: int, step: Any) -> Place:
        """Return the place of a state before a step."""
        return self.memories[number], tirx.floormod(step, TWO) * self.sizes[number]

    def before(self, number: int) -> Place:
        return self.at(number, self._t)

    def after(self, number: int) -> Place:
        parity = tirx.floormod(self._t, TWO)
        return self.memories[number], (1 - parity) * self.sizes[number]

    def filled(self, sources: Sequence[Any]) -> list[Any]:
        """Return loops that copy the initial states to the slots that the first step reads."""
        return [
            copied((source, ZERO), (memory, ZERO), size)
            for source, memory, size in zip(sources, self.memories, self.sizes, strict=True)
        ]

    def emptied(self, to: Mapping[int, Any], steps: Any) -> list[Any]:
        """Return loops that copy the states after `steps` steps to the buffers in `to`, whose
        keys are the states' numbers."""
        return [
            copied(self.at(n, steps), (buffer, ZERO), self.sizes[n]) for n, buffer in to.items()
        ]


def place_next(
    frame: Frame, slots: Slots, befores: Sequence[Any], afters: Sequence[Any], made: set[Any]
) -> tuple[dict[Any, int], list[Any]]:
    """Give slots to the next states among `made`, which kernels write. Return the numbers of these
    states by key, and the numbers of the other states, which each step must copy at its end."""
    direct: dict[Any, int] = {}
    others = []
    for number, after in enumerate(afters):
        if after in made and after not in direct:
            direct[after] = number
            frame.places[after] = slots.after(number)
        else:
            others.append(number)
    return direct, others


def scan_function(
    body: Body, layout: Layout, target: Target, add: Callable[[PrimFunc], Any], alone: bool
) -> Plan:
    """Return the function of a loop. `add` adds called functions to the module. With `alone`, the
    function runs on one thread."""
    befores = [before for before, _ in layout.states]
    afters = [after for _, after in layout.states]
    constants = body.constants({*befores, *layout.slices}, [*afters, *layout.stacked])

    def whole(key: Any) -> Shaped:
        shape, dtype = layout.specs[key]
        return (layout.length, *shape), dtype

    of_states = [layout.specs[key] for key in befores]
    shapes = [shape for shape, _ in (*layout.specs.values(), *map(spec_of, constants))]
    frame = Frame([body], [*shapes, (layout.length,)], add)
    t, length = tirx.Var("t", "int64"), frame.put(layout.length)
    at = length - 1 - t if layout.reverse else t
    first = [frame.parameter(f"s{n}", spec) for n, spec in enumerate(of_states)]
    sequences = [frame.parameter(f"x{n}", whole(key)) for n, key in enumerate(layout.slices)]
    fixed = [frame.parameter(f"c{n}", spec_of(key)) for n, key in enumerate(constants)]
    last = {n: frame.parameter(f"e{n}", of_states[n]) for n in layout.last}
    stacked = [frame.parameter(f"y{n}", whole(key)) for n, key in enumerate(layout.stacked)]

    slots, places = Slots(frame, of_states, t), frame.places
    places.update({before: slots.before(n) for n, before in enumerate(befores)})
    direct, moved = place_next(frame, slots, befores, afters, body.made)

    def slice_of(key: Any) -> Any:
        return at * frame.size(layout.specs[key][0])

    for key, buffer in zip(layout.slices, sequences, strict=True):
        places[key] = frame.flat(buffer), slice_of(key)
    places.update({key: (frame.flat(b), ZERO) for key, b in zip(constants, fixed, strict=True)})
    outputs = list(map(frame.flat, stacked))
    for key, buffer in zip(layout.stacked, outputs, strict=True):
        places.setdefault(key, (buffer, slice_of(key)))
    frame.place_others()

    # Copies at the start of a step (of values from before it), at its end, and after the loop.
    early: list[Any] = []
    late = [copied(places[afters[n]], slots.after(n), slots.sizes[n]) for n in moved]
    behind: list[Any] = []
    for key, buffer in zip(layout.stacked, outputs, strict=True):
        size = frame.size(layout.specs[key][0])
        if places[key][0] is buffer:
            continue
        if key in befores:
            early.append(copied(places[key], (buffer, at * size), size))
        elif key in direct:
            others = body.region.store_twice(key)
            places.update({other: (buffer, at * size) for other in others})
            if others:
                continue
            number = direct[key]
            previous = at + 1 if layout.reverse else at - 1
            done = copied(slots.before(number), (buffer, previous * size), size)
            early.append(tirx.IfThenElse(t > 0, done, None))
            end = ZERO if layout.reverse else (length - 1) * size
            final = copied(slots.at(number, length), (buffer, end), size)
            behind.append(tirx.IfThenElse(length > 0, final, None))
        else:
            late.append(copied(places[key], (buffer, at * size), size))

    phases, several = frame.phases(body, target, alone)
    if early:
        phases = [[*early, *phases[0]], *phases[1:]] if phases else [early]
    if late:
        phases.append(late)
    statements = [
        *slots.filled(list(map(frame.flat, first))),
        *regions.loop(t, length, regions.steps_of(phases, several), several),
        *slots.emptied({n: frame.flat(buffer) for n, buffer in last.items()}, length),
        *behind,
    ]
    results = [*last.values(), *stacked]
    made = frame.function([*first, *sequences, *fixed], results, statements)
    return frame.plan(made, constants)
