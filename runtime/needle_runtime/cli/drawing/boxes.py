"""A graph to draw: boxes, and which boxes each of them reads, independent of the file format."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

MANY = 300  # above this number of boxes, each chain is drawn as one box
_LISTED = 6  # names of a chain's kernels in its box

# The kind of a kernel, by the first word found in its name; the heaviest kind comes first.
KINDS = {
    "recurrent": ("lstm", "gru", "rnn", "recurr"),
    "attention": ("attention", "flash"),
    "convolution": ("conv", "winograd"),
    "product": ("matmul", "dense", "gemm", "einsum", "batch_matmul"),
    "reduction": ("softmax", "sum", "mean", "max", "min", "norm", "argm", "pool", "prod", "reduce"),
}
OTHER = "other"


@dataclass(frozen=True)
class Weight:
    """An array that the model holds, under its own name and shape; `size` in bytes."""

    name: str
    text: str  # dtype and shape
    size: int


@dataclass(frozen=True)
class Box:
    """An input, an output or a kernel. `reads` are the positions of boxes that come before it.

    `result` is the dtype and shape of its result, `details` is further text for a tooltip.
    """

    role: str  # "input", "output" or "kernel"
    lines: tuple[str, ...]
    kind: str
    reads: tuple[int, ...] = ()
    result: str = ""
    weights: tuple[Weight, ...] = ()
    details: str = ""

    @property
    def weight(self) -> int:
        """The bytes of the box's weights."""
        return sum(weight.size for weight in self.weights)


@dataclass
class Drawn:
    """Boxes, each after the boxes that it reads, and the title above them."""

    title: str
    boxes: list[Box] = field(default_factory=list)

    def add(self, box: Box) -> int:
        """Append a box; return its position."""
        self.boxes.append(box)
        return len(self.boxes) - 1

    @property
    def weight(self) -> int:
        """The bytes of all weights; a weight that several kernels read counts once."""
        sizes = {weight.name: weight.size for box in self.boxes for weight in box.weights}
        return sum(sizes.values())


def kind_of(name: str) -> str:
    """Return the kind of a kernel or an operator, from its name."""
    lowered = re.sub("maximum|minimum", "", name.lower())  # of two arrays: not a reduction
    for kind, words in KINDS.items():
        if any(word in lowered for word in words):
            return kind
    return OTHER


def steps_of(name: str) -> tuple[str, ...]:
    """Return the operations in a kernel's name: fused_conv2d_add1_add2_relu is conv2d, add x 2,
    relu."""
    parts = name.removeprefix("fused_").split("_")
    # This drops the number that TVM appends to a repeated name.
    bare = [re.sub(r"(?<=[a-z])\d+$", "", part) for part in parts]
    found: list[list[str]] = []
    for part in filter(None, bare):
        if found and found[-1][0] == part:
            found[-1].append(part)
        else:
            found.append([part])
    return tuple(f"{run[0]} x {len(run)}" if len(run) > 1 else run[0] for run in found) or (name,)


def bytes_of(extents: Sequence[object], width: int) -> int:
    """Return the size in bytes of an array; 0 if an extent is not a number."""
    return width * math.prod(n if isinstance(n, int) else 0 for n in extents)


def collapsed(drawn: Drawn, most: int = MANY) -> Drawn:
    """Return the same graph if it has at most `most` boxes; otherwise the graph with every chain of
    kernels, each read only by the next, as one box with their names and weights."""
    if len(drawn.boxes) <= most:
        return drawn
    boxes = drawn.boxes
    readers = Counter(i for box in boxes for i in set(box.reads))
    chain: list[int] = []  # the chain of each box
    chains: list[list[int]] = []
    for i, box in enumerate(boxes):
        before = set(box.reads)
        joins = box.role == "kernel" and len(before) == 1
        source = next(iter(before)) if joins else -1
        if joins and boxes[source].role == "kernel" and readers[source] == 1:
            chain.append(chain[source])
            chains[chain[source]].append(i)
        else:
            chain.append(len(chains))
            chains.append([i])
    made = Drawn(drawn.title)
    # A reader of a chain reads its last box, and comes later; so chains stay in order.
    places: dict[int, int] = {}
    for number in sorted(range(len(chains)), key=lambda n: chains[n][0]):
        members = [boxes[i] for i in chains[number]]
        reads = sorted({places[chain[i]] for i in members[0].reads})
        places[number] = made.add(_chain(members, tuple(reads)))
    return made


def _chain(members: Sequence[Box], reads: tuple[int, ...]) -> Box:
    if len(members) == 1:
        return replace(members[0], reads=reads)
    names = [box.lines[0] for box in members[:_LISTED]]
    lines = [f"{len(members)} in a row: {names[0]}", *names[1:]]
    if len(members) > _LISTED:
        lines.append(f"+{len(members) - _LISTED}")
    return Box(
        "kernel",
        tuple(lines),
        heaviest(box.kind for box in members),
        reads,
        members[-1].result,
        tuple(weight for box in members for weight in box.weights),
        "\n".join(box.details for box in members),
    )


def heaviest(kinds: Iterable[str]) -> str:
    """Return the kind among `kinds` that comes first in KINDS."""
    order = [*KINDS, OTHER]
    return min(kinds, key=order.index, default=OTHER)
