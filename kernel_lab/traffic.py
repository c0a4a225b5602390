"""The bytes that a rung moves for each useful operation, by cache level, at the size that ran."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kernel_lab.trace.stream import Cache, moved
from kernel_lab.workload import Case, Workload
from needle_runtime.errors import NeedleTVMError

if TYPE_CHECKING:
    from needle_tvm._tvm.names import IRModule

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")  # Linux describes the caches of a core here
_LEVELS = 2  # private to a core on current processors; further levels are shared


@dataclass(frozen=True)
class Traffic:
    """Useful operations for each byte that the loops load or store (`accessed`), and for each byte
    of the lines that each of `caches` misses (`missed`)."""

    accessed: float
    missed: tuple[float, ...]
    caches: tuple[Cache, ...]


def traffic(
    workload: Workload, module: IRModule, case: Case, caches: Iterable[Cache]
) -> Traffic | None:
    """Return the traffic of a scheduled CPU module at the case's own size; None if it cannot be
    counted (see `kernel_lab.trace.stream.moved`)."""
    chosen, flops = tuple(caches), workload.flops(case.size)
    try:
        counted = moved(module, chosen, cores=case.processor.cores)
    except NeedleTVMError:
        return None
    return Traffic(
        flops / counted.accessed, tuple(flops / missed for missed in counted.missed), chosen
    )


def processor_caches(folder: Path = _CACHES) -> tuple[Cache, ...]:
    """Return the data caches of this machine's first core, first level first; () if the system does
    not describe them."""
    found = {}
    for index in sorted(folder.glob("index*")):
        names = ("level", "size", "ways_of_associativity")
        level, kibibytes, ways = (_fact(index / name).removesuffix("K") for name in names)
        is_known = all(number.isdigit() and int(number) for number in (level, kibibytes, ways))
        if is_known and _fact(index / "type") in ("Data", "Unified"):
            found[int(level)] = Cache(int(kibibytes) << 10, int(ways))
    levels = range(1, _LEVELS + 1)
    return tuple(found[level] for level in levels) if set(levels) <= found.keys() else ()


def _fact(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
