"""Place the boxes of a graph: in layers, from top to bottom, with few crossings.

The method is that of Sugiyama, Tagawa and Toda, "Methods for Visual Understanding of Hierarchical
System Structures", IEEE SMC 11(2), 1981. A box is below all boxes that it reads. An edge that
passes through layers gets a position in each of them. Each layer is sorted by the mean position of
a node's neighbours.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

SWEEPS = 12  # sweeps, alternately down and up, for the order; positions take twice as many
GAP, THIN, BETWEEN = 28.0, 14.0, 34.0  # between boxes, width of a passing edge, between layers


@dataclass(frozen=True)
class Placed:
    """The left and top of each box, the points of each edge, and the size of the whole picture."""

    corners: list[tuple[float, float]]
    edges: list[list[tuple[float, float]]]  # a point at each end, two for each layer it crosses
    width: float
    height: float


def place(reads: Sequence[Sequence[int]], sizes: Sequence[tuple[float, float]]) -> Placed:
    """Place boxes with these `sizes` (width, height); each box reads only boxes before it."""
    if not sizes:
        return Placed([], [], 0.0, 0.0)
    layer = _layers(reads)
    members: list[list[int]] = [[] for _ in range(max(layer) + 1)]
    for i, level in enumerate(layer):
        members[level].append(i)
    widths = [width for width, _ in sizes]
    above: list[list[int]] = [[] for _ in sizes]  # neighbours one layer up
    below: list[list[int]] = [[] for _ in sizes]
    routes: list[list[int]] = []
    for i, sources in enumerate(reads):
        for source in sorted(set(sources)):
            route = [source]
            for level in range(layer[source] + 1, layer[i]):
                members[level].append(len(widths))
                route.append(len(widths))
                widths.append(THIN)
                above.append([])
                below.append([])
            route.append(i)
            for a, b in itertools.pairwise(route):
                below[a].append(b)
                above[b].append(a)
            routes.append(route)
    _order(members, above, below)
    centres = _centres(members, above, below, widths, len(sizes))
    left = min(c - w / 2 for c, w in zip(centres, widths, strict=True))
    centres = [c - left for c in centres]
    tops, bottoms, y = [], [], 0.0
    for nodes in members:
        tallest = max((sizes[i][1] for i in nodes if i < len(sizes)), default=0.0)
        tops.append(y)
        bottoms.append(y + tallest)
        y += tallest + BETWEEN
    corners = [(centres[i] - sizes[i][0] / 2, tops[layer[i]]) for i in range(len(sizes))]
    edges = [_points(route, layer, corners, sizes, centres, tops, bottoms) for route in routes]
    width = max(c + w / 2 for c, w in zip(centres, widths, strict=True))
    return Placed(corners, edges, width, y - BETWEEN)


def _layers(reads: Sequence[Sequence[int]]) -> list[int]:
    """Return the layer of each box: one below the lowest box that it reads. A box that reads
    nothing is just above the first box that reads it."""
    layer = [0] * len(reads)
    for i, sources in enumerate(reads):
        layer[i] = 1 + max((layer[source] for source in sources), default=-1)
    first: dict[int, int] = {}
    for reader, sources in enumerate(reads):
        for source in sources:
            first[source] = min(first.get(source, layer[reader]), layer[reader])
    return [first[i] - 1 if not reads[i] and i in first else level for i, level in enumerate(layer)]


def _order(
    members: list[list[int]], above: Sequence[Sequence[int]], below: Sequence[Sequence[int]]
) -> None:
    """Sort each layer by the mean position of the neighbours in the layer above or below, in
    alternating sweeps down and up."""
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        near = above if down else below
        levels = members if down else members[::-1]
        for fixed, level in itertools.pairwise(levels):
            place = {node: i for i, node in enumerate(fixed)}
            # A node without neighbours in the fixed layer keeps its position in its own layer.
            wanted = {
                node: sum(place[other] for other in near[node]) / len(near[node])
                if near[node]
                else i * len(fixed) / len(level)
                for i, node in enumerate(level)
            }
            level.sort(key=wanted.__getitem__)


def _centres(
    members: Sequence[Sequence[int]],
    above: Sequence[Sequence[int]],
    below: Sequence[Sequence[int]],
    widths: Sequence[float],
    boxes: int,
) -> list[float]:
    """Return the horizontal centre of each box and passing edge: near the mean of its neighbours
    above or below (in the last sweeps, of both), and without overlaps in its layer. A passing edge
    has a larger weight, so that it runs straight."""
    centres = [0.0] * len(widths)
    for level in members:
        x = 0.0
        for node in level:
            centres[node] = x + widths[node] / 2
            x += widths[node] + GAP
    for sweep in range(2 * SWEEPS):
        down = sweep % 2 == 0
        for level in members if down else reversed(members):
            wanted, weight = [], []
            for node in level:
                near = (above if down else below)[node]
                if sweep >= SWEEPS or not near:
                    near = [*above[node], *below[node]]
                found = [centres[other] for other in near]
                wanted.append(sum(found) / len(found) if found else centres[node])
                weight.append(1.0 if node < boxes else 2.0)
            for node, x in zip(level, _apart(level, wanted, weight, widths), strict=True):
                centres[node] = x
    return centres


def _apart(
    level: Sequence[int], wanted: Sequence[float], weight: Sequence[float], widths: Sequence[float]
) -> list[float]:
    """Return the positions closest to the wanted ones (by least squares) at which neighbours do not
    overlap. The method is pool adjacent violators."""
    offsets = [0.0]
    for a, b in itertools.pairwise(level):
        gap = GAP if widths[a] != THIN and widths[b] != THIN else GAP / 2
        offsets.append(offsets[-1] + (widths[a] + widths[b]) / 2 + gap)
    pools: list[list[float]] = []  # sum of weighted positions, sum of weights, number of members
    for want, offset, heavy in zip(wanted, offsets, weight, strict=True):
        pools.append([(want - offset) * heavy, heavy, 1])
        while len(pools) > 1 and pools[-2][0] / pools[-2][1] > pools[-1][0] / pools[-1][1]:
            last = pools.pop()
            pools[-1] = [a + b for a, b in zip(pools[-1], last, strict=True)]
    starts = [pool[0] / pool[1] for pool in pools for _ in range(int(pool[2]))]
    return [start + offset for start, offset in zip(starts, offsets, strict=True)]


def _points(
    route: Sequence[int],
    layer: Sequence[int],
    corners: Sequence[tuple[float, float]],
    sizes: Sequence[tuple[float, float]],
    centres: Sequence[float],
    tops: Sequence[float],
    bottoms: Sequence[float],
) -> list[tuple[float, float]]:
    source, target = route[0], route[-1]
    points = [(centres[source], corners[source][1] + sizes[source][1])]
    for step, node in enumerate(route[1:-1], 1):
        level = layer[source] + step
        points += [(centres[node], tops[level]), (centres[node], bottoms[level])]
    return [*points, (centres[target], corners[target][1])]
