"""The size at which a rung is drawn: the smallest that holds two whole tiles along each axis."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kernel_lab.rung import Rung
from kernel_lab.workload import Case, Processor, Size, Workload

if TYPE_CHECKING:
    from needle_tvm._tvm.names import IRModule


@dataclass(frozen=True)
class Nest:
    """A schedule's loops: the kind and the extent of each, and how many blocks test a bound.

    A block tests a bound where a tile is cut short.
    """

    kinds: tuple[int, ...]
    extents: tuple[int, ...]
    cut: int

    def shows(self, whole: Nest, tile: frozenset[int]) -> bool:
        """Return whether a picture of this nest shows the behaviour of `whole`. This requires that
        both have the same loops, that the loops in `tile` are equally long, and that each other
        loop runs at least twice if it does so in `whole`. Tiles may be cut short only if `whole`
        cuts tiles short; then a third iteration makes room for two whole tiles."""
        least = 3 if whole.cut else 2
        return (
            self.kinds == whole.kinds
            and self.cut <= whole.cut
            and all(
                here == there if number in tile else here >= min(least, there)
                for number, (here, there) in enumerate(
                    zip(self.extents, whole.extents, strict=True)
                )
            )
        )


def nest_of(module: IRModule) -> Nest:
    """Return the loops of a scheduled module. A loop without a constant extent counts as two
    iterations."""
    from needle_tvm.tir.functions import NODES, nodes_in

    body = module["main"].body
    loops = nodes_in(body, NODES.loop)
    extents = [int(getattr(loop.extent, "value", 2)) for loop in loops]
    cut = [block for block in nodes_in(body, NODES.realize) if not _is_true(block.predicate)]
    return Nest(tuple(int(loop.kind) for loop in loops), tuple(extents), len(cut))


def _is_true(predicate: Any) -> bool:
    return bool(getattr(predicate, "value", False))


def drawn_size(workload: Workload, rung: Rung, case: Case) -> dict[str, Any]:
    """Return the smallest size at which the rung's loops behave as at the case's own size.

    From the last dimension to the first, each dimension gets the smallest value that `Nest.shows`
    allows, found by doubling from the workload's `drawn`.
    """
    return dict(_drawn(workload.drawn, rung, tuple(case.size.items()), case.processor)[0])


def checked_size(workload: Workload, rung: Rung, case: Case) -> dict[str, Any]:
    """Return a small size at which each tile is cut as at the case's own size.

    It is `drawn_size` with longer dimensions: each leaves the same remainder as the case's own
    dimension when it is divided by the extent of any loop over a tile. It is at most the case's own
    size.
    """
    size, tiles = _drawn(workload.drawn, rung, tuple(case.size.items()), case.processor)
    longer = {
        name: size[name] + (case.size[name] - size[name]) % math.lcm(size[name], *tiles)
        for name in _dimensions(size)
    }
    return {**size, **longer}


@functools.lru_cache(maxsize=256)  # a report asks several times for each rung
def _drawn(
    least: Callable[[Size], Size],
    rung: Rung,
    given: tuple[tuple[str, Any], ...],
    processor: Processor,
) -> tuple[dict[str, Any], frozenset[int]]:
    """Return the size at which a rung is drawn, and the extents of its loops over a tile."""

    def nest(size: Mapping[str, Any]) -> Nest | None:
        if rung.claims(size) is not None:
            return None
        return nest_of(rung.module(Case(size, processor)))

    size = dict(given)
    whole = nest_of(rung.module(Case(size, processor)))
    tile = _tile(size, whole, nest)
    for name in reversed(_dimensions(size)):
        for value in _doubling(int(least(size)[name]), size[name]):
            found = nest({**size, name: value})
            if found is not None and found.shows(whole, tile):
                size[name] = value
                break
    return size, frozenset(whole.extents[number] for number in tile)


def common_size(workload: Workload, rungs: Iterable[Rung], case: Case) -> dict[str, Any]:
    """Return a size at which every rung has two whole tiles along each axis. Each dimension is the
    largest in any rung's `drawn_size`. Failed rungs, which may have huge tiles, do not count."""
    standing = [rung for rung in rungs if rung.kind != "failed"]
    sizes = [drawn_size(workload, rung, case) for rung in standing] or [dict(case.size)]
    return {
        name: max(size[name] for size in sizes) if isinstance(value, int) else value
        for name, value in case.size.items()
    }


def _tile(
    size: Mapping[str, Any], whole: Nest, nest: Callable[[Mapping[str, Any]], Nest | None]
) -> frozenset[int]:
    """Return the loops over a tile: their extents do not depend on the size."""
    tile = set(range(len(whole.extents)))
    for name in _dimensions(size):
        for value in (2 * size[name], size[name] // 2):
            found = nest({**size, name: value}) if value else None
            if found is not None and found.kinds == whole.kinds:
                tile -= {n for n in tile if found.extents[n] != whole.extents[n]}
                break
    return frozenset(tile)


def _dimensions(size: Mapping[str, Any]) -> list[str]:
    return [name for name, value in size.items() if isinstance(value, int)]


def _doubling(first: int, last: int) -> Iterator[int]:
    while first < last:
        yield first
        first *= 2
    yield last
