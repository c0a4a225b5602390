"""Views of the sectors and banks that the 32 threads of a warp access with one instruction."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.patches import Rectangle

from kernel_lab.diagrams.style import (
    MUTED,
    PALETTE,
    STORE,
    TEXT,
    WIDTH,
    buffer_colours,
    figure,
    settings,
    titled,
)
from kernel_lab.errors import LabUsageError
from kernel_lab.trace import Trace, gpu
from kernel_lab.trace.events import WARP
from needle_runtime.text import counted

PANELS = 4
SHOWN_SECTORS = 40


def request(trace: Trace, site: int) -> Trace:
    """Return the accesses of one warp instruction of a site: the earliest with the most threads."""
    mine = trace.select(trace.site == site)
    number = gpu.instructions(mine)
    return mine.select(number == np.argmax(np.bincount(number)))


def warp_view(trace: Trace, title: str, note: str = "", *, sites: list[int] | None = None) -> Any:
    """Return a figure with a panel for each load or store of global memory: threads of a warp
    upwards, the 32-byte sectors they touch to the right, each thread's bytes coloured.

    `sites` chooses among the kernel's sites; the default is the least efficient sites. Raises
    LabUsageError if there is none.
    """
    reports = [r for r in gpu.site_reports(trace) if r.scope == "global"]
    chosen = _chosen(reports, sites, "global", lambda report: report.efficiency)
    with settings():
        fig = figure(WIDTH, 0.9 + 2.1 * len(chosen))
        axes = fig.subplots(len(chosen), 1, squeeze=False)[:, 0]
        for axis, report in zip(axes, chosen, strict=True):
            colour = STORE if report.is_store else buffer_colours(trace)[report.buffer]
            _sectors(axis, request(trace, report.site), report, colour)
        axes[-1].set_xlabel("32-byte sectors of global memory, in order of address")
        titled(
            fig, title, "; ".join(filter(None, [note, "each panel: one instruction of one warp"]))
        )
    return fig


def _chosen(reports: list[Any], sites: list[int] | None, scope: str, key: Any) -> list[Any]:
    if sites is not None:
        reports = [report for report in reports if report.site in sites]
    if not reports:
        raise LabUsageError(f"warp view: the kernel has no such access to {scope} memory")
    kept = sorted(sorted(reports, key=key)[:PANELS], key=lambda report: report.site)
    return kept


def _sectors(axis: Any, one: Trace, report: gpu.SiteReport, colour: str) -> None:
    sector = one.address // gpu.SECTOR
    touched, place = np.unique(sector, return_inverse=True)
    left = place + (one.address % gpu.SECTOR) / gpu.SECTOR
    width = one.itemsize / gpu.SECTOR
    shown = min(len(touched), SHOWN_SECTORS)
    for number in range(shown):
        axis.add_patch(
            Rectangle((number, 0), 1, WARP, facecolor=MUTED, alpha=0.10 + 0.10 * (number % 2))
        )
        if number and touched[number] != touched[number - 1] + 1:
            axis.axvline(number, color=MUTED, linewidth=1.2, linestyle="--")
    for x, wide, thread in zip(
        left.tolist(), width.tolist(), (one.thread % WARP).tolist(), strict=True
    ):
        if x < shown:
            axis.add_patch(Rectangle((x, thread + 0.06), wide, 0.88, facecolor=colour, linewidth=0))
    axis.set(xlim=(0, shown), ylim=(0, WARP), ylabel="thread of the warp")
    axis.set_yticks([0, 8, 16, 24, 32])
    step = max(1, -(-shown // 8))
    ticks = np.arange(0, shown, step)
    axis.set_xticks(ticks + 0.5, [f"{touched[tick] * gpu.SECTOR:#x}" for tick in ticks])
    used = len(np.unique(one.address)) * int(one.itemsize[0])
    verb = "store" if report.is_store else "load"
    more = f" ({shown} drawn)" if shown < len(touched) else ""
    moved = len(touched) * gpu.SECTOR
    axis.set_title(
        f"{verb} {shortened(report.text)}\n{counted(len(touched), 'sector')}{more} moved,"
        f" {used} of {moved} bytes used ({used / moved:.0%});"
        f" over all {counted(report.requests, 'request')} {report.efficiency:.0%}",
        loc="left",
        fontsize=TEXT,
    )


def bank_view(trace: Trace, title: str, note: str = "", *, sites: list[int] | None = None) -> Any:
    """Return a figure with a panel for each load or store of shared memory: threads of a warp
    upwards, the 32 banks to the right. The colour is the turn in which the bank serves the thread.

    `sites` chooses among the kernel's sites; the default is the sites with the worst conflicts.
    Raises LabUsageError if there is none.
    """
    reports = [r for r in gpu.site_reports(trace) if r.scope == "shared"]
    chosen = _chosen(reports, sites, "shared", lambda report: -report.degree)
    with settings():
        columns = min(2, len(chosen))
        rows = -(-len(chosen) // columns)
        fig = figure(WIDTH, 0.9 + 3.1 * rows)
        axes = fig.subplots(rows, columns, squeeze=False)
        for axis in axes.ravel()[len(chosen) :]:
            axis.set_visible(False)
        worst = max(int(turns_of(request(trace, report.site)).max()) for report in chosen)
        colours = ListedColormap([*PALETTE[:1], *_ramp(worst - 1)])
        image: Any = None
        for axis, report in zip(axes.ravel(), chosen, strict=False):
            image = _banks(axis, request(trace, report.site), report, colours, worst)
        ticks = np.unique(np.linspace(1, worst, min(worst, 8)).round().astype(int))
        bar = fig.colorbar(image, ax=axes.ravel().tolist(), ticks=ticks, shrink=0.6)
        bar.set_label("turn in which the thread is served")
        titled(
            fig, title, "; ".join(filter(None, [note, "each panel: one instruction of one warp"]))
        )
    return fig


def turns_of(one: Trace) -> np.ndarray:
    """Return, for each access of one warp instruction, the turn (from 1) in which its bank serves
    it."""
    part = gpu.parts(np.zeros(len(one), np.int64), one.address, int(one.itemsize[0]), one.thread)
    word = one.address // gpu.WORD
    turns = np.zeros(len(one), int)
    queues: dict[tuple[int, int], list[int]] = {}
    for place in range(len(one)):
        queue = queues.setdefault((int(part[place]), int(word[place]) % gpu.BANKS), [])
        if word[place] not in queue:
            queue.append(int(word[place]))
        turns[place] = queue.index(word[place]) + 1
    return turns


def _banks(axis: Any, one: Trace, report: gpu.SiteReport, colours: Any, worst: int) -> Any:
    grid = np.full((WARP, gpu.BANKS), np.nan)
    grid[one.thread % WARP, one.address // gpu.WORD % gpu.BANKS] = turns_of(one)
    image = axis.imshow(
        grid,
        origin="lower",
        cmap=colours,
        vmin=0.5,
        vmax=worst + 0.5,
        aspect="auto",
        extent=(-0.5, gpu.BANKS - 0.5, -0.5, WARP - 0.5),
        interpolation="nearest",
    )
    axis.set(xlabel="bank", ylabel="thread of the warp")
    axis.set_xticks(range(0, gpu.BANKS, 8))
    axis.set_yticks(range(0, WARP, 8))
    axis.set_xticks(np.arange(gpu.BANKS) - 0.5, minor=True)
    axis.set_yticks(np.arange(WARP) - 0.5, minor=True)
    axis.grid(which="minor", color=MUTED, linewidth=0.25, alpha=0.6)
    axis.tick_params(which="minor", length=0)
    verb = "store" if report.is_store else "load"
    verdict = "no conflict" if report.degree == 1 else f"{report.degree}-way bank conflict"
    axis.set_title(f"{verb} {shortened(report.text, 44)}\n{verdict}", loc="left", fontsize=TEXT)
    return image


def _ramp(steps: int) -> list[str]:
    """Return colours from yellow to red, for the second turn to the last."""
    first, last = np.array([0xF2, 0xC1, 0x4E]), np.array([0xB0, 0x1E, 0x3C])
    mixed = [first + (last - first) * step / max(1, steps - 1) for step in range(steps)]
    return ["#{:02x}{:02x}{:02x}".format(*colour.astype(int)) for colour in mixed]


def shortened(text: str, limit: int = 90) -> str:
    """Return the text, cut in the middle if it is long."""
    if len(text) <= limit:
        return text
    return f"{text[: limit // 2 - 2]} ... {text[-(limit // 2 - 3) :]}"


__all__ = ["bank_view", "request", "shortened", "turns_of", "warp_view"]
