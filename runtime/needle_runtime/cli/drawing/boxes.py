"""A graph to draw, independent of the file format: boxes, and the boxes that each of them reads."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

MANY = 300  # if there are more boxes than this, each chain is drawn as one box
_LISTED = 6  # the most kernels of a chain that are listed in its box

# The words in a kernel's name that show its kind. Kinds with the most work come first.
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
    """An array of the model, with its name, dtype and shape in the model; `size` is in bytes."""

    name: str
    text: str  # dtype and shape
    size: int


@dataclass(frozen=True)
class Box:
    """An input, an output or a kernel. `reads` has the indices of the boxes that it reads, which
    come before it.

    `result` is the dtype and shape of its result, and `details` is more text for a tooltip.
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
        """The number of bytes of the box's weights."""
        return sum(weight.size for weight in self.weights)


@dataclass
class Drawn:
    """A title, and boxes in an order in which each comes after the boxes that it reads."""

    title: str
    boxes: list[Box] = field(default_factory=list)

    def add(self, box: Box) -> int:
        """Append a box; return its index."""
        self.boxes.append(box)
        return len(self.boxes) - 1

    @property
    def weight(self) -> int:
        """The number of bytes of all weights; a weight that several kernels read counts once."""
        sizes = {weight.name: weight.size for box in self.boxes for weight in box.weights}
        return sum(sizes.values())


def kind_of(name: str) -> str:
    """Return the kind of a kernel or an operator, from its name."""
    lowered = re.sub("maximum|minimum", "", name.lower())  # these ops are not reductions
    for kind, words in KINDS.items():
        if any(word in lowered for word in words):
            return kind
    return OTHER


def steps_of(name: str) -> tuple[str, ...]:
    """Return the operations in a kernel's name: "conv2d", "add x 2", "relu" for
    fused_conv2d_add1_add2_relu."""
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
    """Return a graph of at most `most` boxes unchanged. In a larger graph, replace every chain of
    kernels, each of which only the next one reads, by one box with their names and weights."""
    if len(drawn.boxes) <= most:
        return drawn
    boxes = drawn.boxes
    readers = Counter(i for box in boxes for i in set(box.reads))
    chain: list[int] = []  # the number of each box's chain
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
    # Only the last box of a chain is read from outside, and its readers come later. So
    # sorting by first boxes puts each chain after the chains that it reads.
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
