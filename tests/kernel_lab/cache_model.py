"""The bytes that a trace moves through set-associative LRU caches, one access after another."""

from __future__ import annotations

from collections import OrderedDict

from kernel_lab.trace import Trace
from kernel_lab.trace.stream import Cache, Moved

CACHES = (Cache(2 << 10, 4), Cache(8 << 10, 8))  # small, so that small sizes miss


class Model:
    """A cache of one core: `touch` returns whether the line had to come in."""

    def __init__(self, cache: Cache) -> None:
        self.ways = cache.ways
        self.sets: list[OrderedDict[int, None]] = [
            OrderedDict() for _ in range(cache.size // 64 // cache.ways)
        ]

    def touch(self, line: int) -> bool:
        held = self.sets[line % len(self.sets)]
        missed = line not in held
        held[line] = None
        held.move_to_end(line)
        if len(held) > self.ways:
            held.popitem(last=False)
        return missed


def of_trace(trace: Trace, caches: tuple[Cache, ...] = CACHES) -> Moved:
    """Return the bytes moved, as `kernel_lab.trace.stream.moved` counts them."""
    models = {w: [Model(cache) for cache in caches] for w in set(trace.worker.tolist())}
    missed = [0] * len(caches)
    globals_ = trace.of_scope("global")
    for worker, address in zip(globals_.worker.tolist(), globals_.address.tolist(), strict=True):
        for level, model in enumerate(models[worker]):
            if not model.touch(address // 64):
                break
            missed[level] += 64
    return Moved(int(trace.itemsize.sum()), tuple(missed))
