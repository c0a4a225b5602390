"""The lab's measured times, read from the tables of docs/results."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from docs.website.pages import ROOT

_RESULTS = "docs/results"
_TABLE = re.compile(r"^`python -m kernel_lab (\w+) ([^`]*)`\n\n((?:^\|.*\n)+)", re.MULTILINE)
_FACTOR = re.compile(r"[\d.e+]+")
_IN_MILLISECONDS = {"s": Decimal(1000), "ms": Decimal(1), "µs": Decimal("0.001")}


@dataclass(frozen=True)
class Row:
    """A row of one of the lab's tables: the time, and the speed-up over the rung it starts from.

    `factor` is None if the table has none; `spread` is the factor with its quartiles, as the table
    writes them.
    """

    name: str
    kind: str
    time: str
    factor: float | None
    spread: str

    @property
    def milliseconds(self) -> str:
        """The time in milliseconds, with as many digits as the table has."""
        number, unit = self.time.split()
        return f"{(Decimal(number) * _IN_MILLISECONDS[unit]).normalize():f}"


@dataclass(frozen=True)
class Measured:
    """The rows of a ladder at its default size, and the page of docs/results that has them.

    `searched` has the tuners' rows, which come from a separate run.
    """

    page: str
    rows: Mapping[str, Row]
    searched: Mapping[str, Row]

    def row(self, name: str) -> Row | None:
        """Return the row of a rung, a peer or a tuner; None if it was not measured."""
        return self.rows.get(name) or self.searched.get(name)


@functools.cache
def tables() -> Mapping[tuple[str, str], Measured]:
    """Return the measured ladders by workload and device, each from the newest page that has it."""
    found: dict[tuple[str, str], Measured] = {}
    searched: dict[tuple[str, str], dict[str, Row]] = {}
    for path in sorted((ROOT / _RESULTS).glob("*.md")):
        for name, options, table in _TABLE.findall(path.read_text(encoding="utf-8")):
            words = shlex.split(options)
            key = (name, words[words.index("-d") + 1])
            rows = _rows(table)
            if "--size" in words:
                continue
            if "--rungs" in words:
                searched[key] = {row.name: row for row in rows.values() if row.kind == "search"}
            else:
                found[key] = Measured(f"{_RESULTS}/{path.name}", rows, {})
    return {
        key: Measured(each.page, each.rows, searched.get(key, {})) for key, each in found.items()
    }


def _rows(table: str) -> dict[str, Row]:
    head, _, *lines = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()
    ]
    rows = {}
    for line in lines:
        cells = dict(zip(head, line, strict=True))
        spread = cells["x previous (quartiles)"]
        factor = _FACTOR.match(spread)
        number = float(factor[0]) if factor else None
        rows[cells[""]] = Row(cells[""], cells["kind"], cells["time"], number, spread)
    return rows
