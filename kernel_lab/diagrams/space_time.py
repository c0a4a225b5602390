"""The space-time diagram of a kernel's memory accesses: which element is accessed when."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.colors import to_rgba
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from kernel_lab.diagrams.style import MUTED, PALETTE, STORE, figure, settings, titled
from kernel_lab.errors import LabUsageError
from kernel_lab.trace import Trace
from needle_tvm.words import counted

DENSE = 20_000  # accesses from which on a panel is drawn as an image
PIXELS = (700, 140)  # of that image: few enough that a single access is visible


def space_time(
    trace: Trace,
    title: str,
    note: str = "",
    *,
    by: str = "buffer",
    span: tuple[int, int] | None = None,
) -> Any:
    """Return a figure with a panel for each buffer: elements upwards, time steps to the right.

    Loads are dots, stores are squares. `by` says what the colours mean: "buffer", or "worker" (the
    CPU worker or GPU block), "warp" or "thread". `span` is the time shown: the first step, and one
    past the last. Local memory is left out if there is other memory, since it stands for registers.
    Raises LabUsageError if nothing was accessed.
    """
    if by not in ("buffer", "worker", "warp", "thread"):
        raise LabUsageError(f"space_time: by is {by!r}; it is buffer, worker, warp or thread")
    shown = trace
    if span is not None:
        shown = shown.select((shown.time >= span[0]) & (shown.time < span[1]))
    names = list(dict.fromkeys(trace.buffers[number].name for number in shown.buffer.tolist()))
    scopes = {buffer.name: buffer.scope for buffer in trace.buffers}
    names = [name for name in names if scopes[name] != "local"] or names
    names.sort(key=[buffer.name for buffer in trace.buffers].index)
    if not names:
        raise LabUsageError(f"space_time: {trace.name} has no access to show")
    with settings():
        panels = [shown.of_buffer(name) for name in names]
        sizes = [max(10, np.ptp(panel.index) + 1) for panel in panels]
        heights = [0.6 + min(1.1, 0.35 * np.log10(size)) for size in sizes]
        fig = figure(9, 1.1 + sum(heights))
        axes = fig.subplots(len(names), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
        for number, (axis, panel, name) in enumerate(zip(axes, panels, names, strict=True)):
            _panel(axis, panel, by, number)
            scope = "" if scopes[name] == "global" else f"\n({scopes[name]})"
            axis.set_ylabel(f"{name}{scope}\nelement")
            axis.yaxis.set_major_locator(MaxNLocator(4, integer=True))
            if np.ptp(panel.index) < 4:
                axis.set_ylim(panel.index.min() - 2, panel.index.max() + 2)
        for barrier in trace.barriers if len(trace.barriers) <= 60 else ():
            if span is None or span[0] <= barrier < span[1]:
                for axis in axes:
                    axis.axvline(barrier - 0.5, color=MUTED, linewidth=0.6, linestyle=":")
        axes[-1].set_xlabel("time step (one load or store instruction)")
        axes[-1].xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
        axes[-1].xaxis.set_major_locator(MaxNLocator(8, integer=True))
        _legend(fig, shown, by)
        titled(fig, title, described(trace, note))
    return fig


def _panel(axis: Any, panel: Trace, by: str, number: int) -> None:
    is_store = panel.is_store
    values = np.full(len(panel), number) if by == "buffer" else getattr(panel, by)
    colours = np.array(PALETTE)[values % len(PALETTE)]
    if by == "buffer":
        colours[is_store] = STORE
    if len(panel) > DENSE:
        _raster(axis, panel, colours)
        return
    for store in (False, True):
        mine = is_store == store
        if not mine.any():
            continue
        size = 1.2 if len(panel) > 4000 else 9.0 if len(panel) > 400 else 18.0
        style: dict[str, Any] = {"marker": "s" if store else "o", "s": size, "linewidths": 0}
        if store and by != "buffer" and size > 2:
            style |= {"facecolors": "none", "edgecolors": colours[mine], "linewidths": 0.8}
        else:
            style["c"] = colours[mine]
        axis.scatter(panel.time[mine], panel.index[mine], rasterized=len(panel) > 1500, **style)
    axis.margins(x=0.01, y=0.08)


def _raster(axis: Any, panel: Trace, colours: np.ndarray) -> None:
    """Draw the panel as an image: a pixel has the colour of the last access that falls into it."""
    times = (int(panel.time.min()), int(panel.time.max()) + 1)
    elements = (int(panel.index.min()), int(panel.index.max()) + 1)
    width, height = (
        min(most, high - low) for most, (low, high) in zip(PIXELS, (times, elements), strict=True)
    )
    column = (panel.time - times[0]) * width // (times[1] - times[0])
    row = (panel.index - elements[0]) * height // (elements[1] - elements[0])
    names, which = np.unique(colours, return_inverse=True)
    image = np.zeros((height, width, 4))
    image[row, column] = np.array([to_rgba(name) for name in names])[which]
    axis.imshow(
        image,
        extent=(times[0] - 0.5, times[1] - 0.5, elements[0] - 0.5, elements[1] - 0.5),
        origin="lower",
        aspect="auto",
        interpolation="nearest",
    )
    axis.use_sticky_edges = False  # leave room around the image as around points
    axis.margins(x=0.01, y=0.08)
    axis.autoscale()


def _legend(fig: Any, shown: Trace, by: str) -> None:
    handles = []
    if by == "buffer":
        handles = [_handle("o", PALETTE[0], "load (colour: buffer)"), _handle("s", STORE, "store")]
    else:
        handles = [_handle("o", MUTED, "load"), _handle("s", MUTED, "store")]
        values = np.unique(getattr(shown, by))
        what = {"worker": "block" if shown.device == "gpu" else "worker"}.get(by, by)
        for value in values[: len(PALETTE)].tolist():
            handles.append(_handle("o", PALETTE[value % len(PALETTE)], f"{what} {value}"))
        if len(values) > len(PALETTE):
            handles.append(_handle("", MUTED, f"... of {len(values)}, colours repeat"))
    fig.legend(handles=handles, loc="outside upper right", ncols=min(6, len(handles)))


def _handle(marker: str, colour: str, label: str) -> Line2D:
    return Line2D([], [], linestyle="", marker=marker, color=colour, label=label, markersize=5)


def described(trace: Trace, note: str = "") -> str:
    """One line on the contents of a trace, after the note."""
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
