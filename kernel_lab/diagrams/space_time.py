"""The space-time diagram of a kernel's memory accesses: elements over time."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from kernel_lab.diagrams.cells import SEVERAL, Axis, Cells, cells, copies_apart, shades, time_axis
from kernel_lab.diagrams.loops import Turns, draw_tile, draw_turns, turns_of
from kernel_lab.diagrams.style import (
    MUTED,
    SHARED,
    STORE,
    WIDTH,
    buffer_colours,
    figure,
    settings,
    titled,
    who_colours,
)
from kernel_lab.errors import LabUsageError
from kernel_lab.trace import Trace
from needle_runtime.text import counted

_TICKS = 4  # ticks on a panel's element axis, besides the first
_KEYS = 5  # workers that the legend names; if there are more, the first, the middle and the last


def space_time(
    trace: Trace,
    title: str,
    note: str = "",
    *,
    by: str = "buffer",
    span: tuple[int, int] | None = None,
) -> Any:
    """Return a figure with a panel for each buffer: elements upwards, time steps to the right.

    A panel is a raster; the note says how many steps and elements a cell holds. `by` is the meaning
    of the colours: "buffer" (the buffer's colour for loads, red for stores), or "worker" (the CPU
    worker or GPU block), "warp" or "thread". A cell that is both loaded and stored, or accessed by
    several workers, has a separate colour; a paler cell holds fewer accesses. `span` is the time
    shown: the first step, and one past the last. If the trace recorded the loops, their turns are
    spans above the panels, and frames enclose the elements that one turn touches. Local memory is
    left out if there is other memory, since it stands for registers. Raises LabUsageError if
    nothing was accessed.
    """
    if by not in ("buffer", "worker", "warp", "thread"):
        raise LabUsageError(f"space_time: by is {by!r}; it must be buffer, worker, warp or thread")
    shown = trace
    if span is not None:
        shown = shown.select((shown.time >= span[0]) & (shown.time < span[1]))
    names = list(dict.fromkeys(trace.buffers[number].name for number in shown.buffer.tolist()))
    scopes = {buffer.name: buffer.scope for buffer in trace.buffers}
    owned = {buffer.name: buffer.owned for buffer in trace.buffers}
    names = [name for name in names if scopes[name] != "local"] or names
    names.sort(key=[buffer.name for buffer in trace.buffers].index)
    if not names:
        raise LabUsageError(f"space_time: {trace.name} has no accesses to show")
    column = "is_store" if by == "buffer" else by
    time = time_axis(shown)
    traces = [shown.of_buffer(name) for name in names]
    if by == "worker":
        traces = [copies_apart(one) for one in traces]
    panels = [cells(one, time, column) for one in traces]
    values = np.unique(np.concatenate([panel.values for panel in panels])).tolist()
    colours = buffer_colours(trace) if by == "buffer" else who_colours(values)
    with settings():
        heights = [0.45 + 1.2 * min(1.0, panel.element.cells / 96) for panel in panels]
        if by == "worker":  # room for the longer label
            heights = [max(h, owned[n] * 0.95) for h, n in zip(heights, names, strict=True)]
        turns = turns_of(shown)
        rows = [0.17 * len(turns)] if turns else []
        fig = figure(WIDTH, 1.5 + sum(heights + rows))
        axes = fig.subplots(
            len(rows + names), 1, sharex=True, squeeze=False, height_ratios=rows + heights
        )[:, 0]
        strip, axes = (axes[0], axes[1:]) if turns else (None, axes)
        for axis, panel, name in zip(axes, panels, names, strict=True):
            of = {0: colours[name], 1: STORE} if by == "buffer" else colours
            _draw(axis, panel, of, _row(trace, name))
            scope = "" if scopes[name] == "global" else f"\n({scopes[name]})"
            scope += "\n(a copy each)" if by == "worker" and owned[name] else ""
            axis.set_ylabel(f"{name}{scope}\nelement")
        for barrier in trace.barriers if len(trace.barriers) <= 60 else ():
            if span is None or span[0] <= barrier < span[1]:
                for axis in axes:
                    axis.axvline(barrier - 0.5, color=MUTED, linewidth=0.6, linestyle=":")
        if turns:
            draw_turns(strip, turns, time.edges[1] - time.edges[0])
            note = _and_frames(note, turns, axes, traces, shown)
        axes[-1].set_xlim(*time.edges)
        axes[-1].set_xlabel("time step (one load or store instruction)")
        axes[-1].xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
        axes[-1].xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))
        keys = _buffer_keys(panels) if by == "buffer" else _who_keys(colours, panels, by, trace)
        words = f"{described(trace, note)}; {_scale(time, names, panels)}"
        titled(fig, title, words, keys)
    return fig


def _and_frames(note: str, turns: list[Turns], axes: Any, traces: list[Trace], shown: Trace) -> str:
    """Frame the tile of one turn in each panel; return the note with a phrase about the frames."""
    framed = [draw_tile(axis, one, turns) for axis, one in zip(axes, traces, strict=True)]
    if not any(framed):
        return note
    who = {"gpu": " by a block", "cpu": " by a worker"}[shown.device] if shown.worker.any() else ""
    said = f"framed: what is touched{who} in the turn named at the right, and how large it is"
    return f"{note}; {said}" if note else said


def _row(trace: Trace, name: str) -> int:
    """Return the number of elements in a row of a buffer; 1 for a flat buffer."""
    shape = next(buffer.shape for buffer in trace.buffers if buffer.name == name)
    return shape[-1] if len(shape) > 1 else 1


def ticks(first: int, last: int, row: int) -> range:
    """Return up to five ticks from `first` to `last`. Their distance is a power of two, in rows, or
    in elements if the range is not longer than a row."""
    step = row if last - first >= row else 1
    while (last - first) // step > _TICKS:
        step *= 2
    return range(-(-first // step) * step, last + 1, step)


def _draw(axis: Any, panel: Cells, colours: dict[Any, str], row: int) -> None:
    image = shades(panel, [to_rgb(colours[value]) for value in panel.values], to_rgb(SHARED))
    axis.imshow(
        image,
        extent=(*panel.time.edges, *panel.element.edges),
        origin="lower",
        aspect="auto",
        interpolation="nearest",
    )
    for side in ("left", "bottom"):
        axis.spines[side].set_position(("outward", 2))  # a line on the edge would hide its cells
    axis.set_yticks(ticks(panel.element.first, panel.element.last, row))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.0f}"))
    axis.set_ylim(*panel.element.edges)


def _scale(time: Axis, names: list[str], panels: list[Cells]) -> str:
    """Return the contents of a cell, in words."""
    rows = {panel.element.unit for panel in panels}
    if len(rows) == 1:
        elements = counted(rows.pop(), "element")
    else:
        sizes = [
            f"{name} {panel.element.unit:,}" for name, panel in zip(names, panels, strict=True)
        ]
        elements = f"elements of {', '.join(sizes)}"
    return f"a cell is {counted(time.unit, 'step')} by {elements}; paler: fewer accesses"


def _buffer_keys(panels: list[Cells]) -> list[Patch]:
    keys = [Patch(color=STORE, label="store")]
    if any((panel.values == 0).any() for panel in panels):
        keys.insert(0, Patch(color=MUTED, label="load (colour: buffer)"))
    if any((panel.who == SEVERAL).any() for panel in panels):
        keys.append(Patch(color=SHARED, label="loads and stores"))
    return keys


def _who_keys(colours: dict[Any, str], panels: list[Cells], by: str, trace: Trace) -> list[Patch]:
    what = "block" if by == "worker" and trace.device == "gpu" else by
    values = list(colours)
    named = values if len(values) <= _KEYS else [values[n] for n in (0, len(values) // 2, -1)]
    keys = [Patch(color=colours[value], label=f"{what} {value}") for value in named]
    if any((panel.who == SEVERAL).any() for panel in panels):
        keys.append(Patch(color=SHARED, label="several in one cell"))
    return keys


def described(trace: Trace, note: str = "") -> str:
    """Return one line on the contents of a trace, after the note."""
    text = f"{note}; " if note else ""
    text += f"{len(trace):,} access{'' if len(trace) == 1 else 'es'}"
    kernels = [region for region in trace.regions if region.kind == "kernel"]
    if kernels:
        first = kernels[0]
        text += f"; {counted(first.blocks, 'block')} of {counted(first.threads, 'thread')}"
        text += f", {len(kernels)} kernels" if len(kernels) > 1 else ""
        text += "; all blocks and threads step together"
    elif trace.worker.any():
        text += f"; {counted(int(trace.worker.max()) + 1, 'worker')} side by side"
    if trace.barriers:
        text += "; dotted: barriers"
    if trace.ignored:
        text += f"; {', '.join(trace.ignored)} memory left out"
    return text
