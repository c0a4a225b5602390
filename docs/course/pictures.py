"""The pictures of the lessons: `python -m docs.course.pictures` draws them into `pictures/`.

Each is drawn from a schedule of the lab at a fixed size and processor, so it is the same on every
machine.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernel_lab import diagrams, registry, show
from kernel_lab.diagrams import steps
from kernel_lab.diagrams.step_svg import step_svg
from kernel_lab.diagrams.style import INK, inline_svg
from kernel_lab.trace.statistics import LINE
from kernel_lab.workload import Processor

FOLDER = Path(__file__).parent / "pictures"
ONE_CORE = Processor(cores=1, registers=16, lanes=8)
# The file may be shown on a light or a dark page.
_SCHEMES = f"""<style>svg {{ color: {INK}; background: #ffffff; font-family: sans-serif }}
@media (prefers-color-scheme: dark) {{ svg {{ color: #e6edf3; background: #0d1117 }} }}</style>"""


def _accesses(rung: str, title: str, by: str = "buffer", cores: int = 1, **size: int) -> str:
    """Return the accesses of a rung of the matrix product over time."""
    schedule = registry.ladder("gemm", "cpu")[rung].schedule
    processor = Processor(cores=cores, registers=16, lanes=8)
    shown = show(schedule, size=size, processor=processor)
    return inline_svg(diagrams.space_time(shown.trace, title, by=by))


def _caches() -> str:
    """Return three orders of the product at the same step, with the lines in a cache of 8."""
    room, gap, head = 220, 24, 44
    parts = []
    height = 0.0
    for place, (name, schedule) in enumerate(_ORDERS.items()):
        shown = show(schedule, size={"M": 32, "N": 32, "K": 8}, processor=ONE_CORE)
        run, _ = steps.steps_of(shown.trace, room, 260, 8 * LINE)
        run["name"] = name
        drawn = step_svg(run, _STEP, room)
        tall = float(drawn.partition('viewBox="0 0 ')[2].split()[1].rstrip('"'))
        height = max(height, tall)
        misses = sum(step <= _STEP for step, *_ in run["misses"])
        x = place * (room + gap)
        parts.append(
            f'<g fill="currentColor"><text x="{x}" y="16" font-size="15" font-weight="bold">'
            f'{name}</text><text x="{x}" y="34" font-size="13">{misses:,} misses so far</text></g>'
            + drawn.replace("<svg", f'<svg x="{x}" y="{head}" width="{room}" height="{tall}"', 1)
        )
    width = len(_ORDERS) * (room + gap) - gap
    return f'<svg viewBox="0 0 {width} {head + height:.0f}">{"".join(parts)}</svg>'


def _on_a_gpu(*rungs: str, **size: int) -> dict[str, Any]:
    """Return traces of rungs of the matrix product on a GPU, by name."""
    ladder = registry.ladder("gemm", "cuda")
    return {name: show(ladder[name].schedule, device="cuda", size=size).trace for name in rungs}


def _sectors() -> str:
    traces = _on_a_gpu("threads_1d", "threads_2d", M=32, N=32, K=16)
    return inline_svg(diagrams.sector_map(traces, "The sectors of one request"))


def _tiles() -> str:
    traces = _on_a_gpu("shared_memory", "register_tile", M=64, N=64, K=8)
    return inline_svg(diagrams.block_tiles(traces, "Tiles of a block and of a thread", thread=35))


_STEPS_AND_VECTORS = tuple(itertools.product((8, 16), (False, True)))


def _choices() -> str:
    """Return the times of a search, which its page of results lists."""
    page = FOLDER.parents[1] / "results" / "2026-11-30-choices-cpu.md"
    tried = []
    for tile, *cells in re.findall(
        r"^\| (\d+ x \d+)" + r" \| ([\d.]+)" * 4, page.read_text(), re.M
    ):
        rows, columns = map(int, tile.split(" x "))
        for (step, vectors), cell in zip(_STEPS_AND_VECTORS, cells, strict=True):
            knobs = {"rows": rows, "columns": columns, "step": step, "vectors": vectors}
            tried.append((knobs, float(cell)))
    note = "128 x 128 x 128, one thread of an AMD EPYC (Zen 3, AVX2), 2026-11-30"
    title = "A search over 36 schedules: microseconds of a call"
    return inline_svg(diagrams.surface(tried, ("rows", "columns"), title, note))


def _blocks_of_16(sch: Any, case: Any) -> None:
    i, j, k = sch.get_loops(sch.get_sblock("C"))
    i_outer, i_inner = sch.split(i, [None, 16])
    j_outer, j_inner = sch.split(j, [None, 16])
    k_outer, k_inner = sch.split(k, [None, 4])
    sch.reorder(i_outer, j_outer, k_outer, i_inner, k_inner, j_inner)


_ORDERS = {
    "naive": registry.ladder("gemm", "cpu")["naive"].schedule,
    "reorder": registry.ladder("gemm", "cpu")["reorder"].schedule,
    "blocks of 16": _blocks_of_16,
}
_STEP = 20_000  # of about 33,800


PICTURES: dict[str, Callable[[], str]] = {
    "01-naive": lambda: _accesses("naive", "naive, 4 x 8 x 2", M=4, N=8, K=2),
    "02-reorder": lambda: _accesses("reorder", "reorder, 4 x 8 x 2", M=4, N=8, K=2),
    "03-cache": _caches,
    "07-sectors": _sectors,
    "08-tiles": _tiles,
    "search-choices": _choices,
}


def picture(name: str) -> str:
    """Return the text of a picture's file."""
    head, rest = PICTURES[name]().split(">", 1)
    if "xmlns=" not in head:
        head = head.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
    return f"{head}>\n{_SCHEMES}{rest.strip()}\n"


def main() -> None:
    """Draw all pictures."""
    FOLDER.mkdir(exist_ok=True)
    for name in PICTURES:
        (FOLDER / f"{name}.svg").write_text(picture(name), encoding="utf-8")


if __name__ == "__main__":
    main()
