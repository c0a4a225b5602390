"""The pictures of the lessons: `python -m docs.course.pictures` draws them into `pictures/`.

Each is drawn from a schedule of the lab at a fixed size and for a fixed processor, so it is the
same on every machine.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib

from kernel_lab import diagrams, registry, show
from kernel_lab.diagrams import steps
from kernel_lab.diagrams.step_svg import step_svg
from kernel_lab.diagrams.style import INK, MUTED, PALETTE, inline_svg
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
    """Return the times of a search, read from its page of results."""
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
_STEP = 20_000  # of 33,792


def _registers() -> str:
    """Return a register tile of 4 rows by 2 vectors of 8 lanes, and the 16 registers of AVX2."""
    rows, vectors, lanes, registers = 4, 2, 8, 16
    a, b, c = PALETTE[:3]
    cell, gap = 20, 8
    width = vectors * lanes * cell + (vectors - 1) * gap
    left, top = 84, 84
    parts = []

    def box(x: float, y: float, wide: float, fill: str | None) -> None:
        style = f'fill="{fill}" opacity="0.75"' if fill else 'fill="none" stroke="currentColor"'
        parts.append(f'<rect x="{x}" y="{y}" width="{wide}" height="{cell}" rx="3" {style}/>')

    def text(x: float, y: float, words: str, size: int = 15) -> None:
        parts.append(f'<text x="{x}" y="{y}" font-size="{size}">{words}</text>')

    def vector(x: float, y: float, fill: str | None) -> None:
        box(x, y, lanes * cell, fill)

    text(left, 20, f"B: a row, {vectors} vectors")
    text(left + width + 28, 20, f"{registers} registers")
    for number in range(vectors):
        vector(left + number * (lanes * cell + gap), 34, b)
    for row in range(rows):
        y = top + row * (cell + gap)
        box(44, y, cell, a)
        for number in range(vectors):
            vector(left + number * (lanes * cell + gap), y, c)
    text(50, top + rows * (cell + gap) + 14, "A")
    text(left, top + rows * (cell + gap) + 14, f"C: {rows} x {vectors} vectors of sums")
    held = [("sum", c)] * (rows * vectors) + [("B", b)] * vectors + [("A", a)]
    held += [("free", None)] * (registers - len(held))
    for number, (name, fill) in enumerate(held):
        x = left + width + 28 + 66 * (number % 4)
        y = 34 + (cell + gap) * (number // 4)
        box(x, y, 58, fill)
        text(x + 8, y + 15, name, 13)
    wide, tall = left + width + 28 + 4 * 66, top + rows * (cell + gap) + 24
    return f'<svg viewBox="0 0 {wide} {tall}" fill="currentColor">{"".join(parts)}</svg>'


def _whole_tiles() -> str:
    """Return the tiles of 4 x 16 over a C of 19 x 41, and the part of them that is not used."""
    m, n, rows, columns, cell = 19, 41, 4, 16, 11
    bands, panels = -(-m // rows), -(-n // columns)
    left, top, colour = 84, 50, PALETTE[2]
    parts = [
        f'<rect x="{left}" y="{top}" width="{panels * columns * cell}"'
        f' height="{bands * rows * cell}" fill="{MUTED}" opacity="0.35"/>',
        f'<rect x="{left}" y="{top}" width="{n * cell}" height="{m * cell}" fill="{colour}"/>',
    ]
    for band in range(bands):
        y = top + band * rows * cell
        parts.append(f'<text x="0" y="{y + 28}" font-size="15">band {band}</text>')
        parts += [
            f'<rect x="{left + panel * columns * cell}" y="{y}" width="{columns * cell}"'
            f' height="{rows * cell}" fill="none" stroke="currentColor" stroke-width="1.5"/>'
            for panel in range(panels)
        ]
    for panel in range(panels):
        x = left + panel * columns * cell
        parts.append(f'<text x="{x}" y="{top - 10}" font-size="15">panel {panel}</text>')
    below = top + bands * rows * cell + 22
    for x, fill, words in ((left, colour, f"C: {m} x {n}"), (left + 160, MUTED, "not used")):
        parts.append(f'<rect x="{x}" y="{below - 12}" width="14" height="14" fill="{fill}"/>')
        parts.append(f'<text x="{x + 20}" y="{below}" font-size="15">{words}</text>')
    wide = left + panels * columns * cell + 2
    return f'<svg viewBox="0 0 {wide} {below + 8}" fill="currentColor">{"".join(parts)}</svg>'


PICTURES: dict[str, Callable[[], str]] = {
    "01-naive": lambda: _accesses("naive", "naive, 4 x 8 x 2", M=4, N=8, K=2),
    "02-reorder": lambda: _accesses("reorder", "reorder, 4 x 8 x 2", M=4, N=8, K=2),
    "03-cache": _caches,
    "04-registers": _registers,
    "05-threads": lambda: _accesses(
        "parallel", "parallel, 64 x 64 x 8, two threads", by="worker", cores=2, M=64, N=64, K=8
    ),
    "06-whole-tiles": _whole_tiles,
    "07-sectors": _sectors,
    "08-tiles": _tiles,
    "search-choices": _choices,
}


def picture(name: str) -> str:
    """Return the text of a picture's file."""
    with matplotlib.rc_context({"svg.hashsalt": name}):  # else ids are drawn at random
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
