"""Charts of measured results: time by rung, the roofline, sweeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from kernel_lab.diagrams.style import (
    INK,
    MUTED,
    PALETTE,
    SHARED,
    SMALL,
    STORE,
    WIDTH,
    figure,
    settings,
    titled,
)
from kernel_lab.errors import LabUsageError
from kernel_lab.factors import factor
from kernel_lab.results import LabResult, Roofline, RungResult
from kernel_lab.traffic import Traffic
from needle_runtime.process.timing import Spread
from needle_runtime.text import digits, duration

KIND_COLOURS = {
    "naive": MUTED,
    "rewrite": SHARED,
    "schedule": PALETTE[0],
    "failed": STORE,
    "search": PALETTE[1],
    "peer": PALETTE[2],
}


def _timed(result: LabResult) -> list[tuple[RungResult, Spread]]:
    everybody = (*result.rungs, *result.peers)
    entries = [(entry, entry.seconds) for entry in everybody if entry.seconds is not None]
    if not entries:
        raise LabUsageError(f"chart: no rung or peer of {result.workload} was timed")
    return entries


def _label(entry: RungResult) -> str:
    return entry.name if entry.precision == "float32" else f"{entry.name} ({entry.precision})"


def time_chart(result: LabResult) -> Any:
    """Return a figure with a dot at the median time of each rung and peer, and its quartiles as a
    line.

    Raises LabUsageError if nothing was timed, as the other charts do.
    """
    entries = _timed(result)
    with settings():
        fig = figure(WIDTH, 1.4 + 0.26 * len(entries))
        axis = fig.subplots()
        for place, (entry, time) in enumerate(entries):
            colour = KIND_COLOURS[entry.kind]
            axis.plot([time.lower, time.upper], [place, place], color=colour, linewidth=1.5)
            axis.plot(time.median, place, "o", color=colour, markersize=6)
            text = duration(time.median)
            if entry.speedup_naive is not None and entry.kind != "naive":
                text += f" · {factor(entry.speedup_naive.median)}"
            axis.annotate(
                text,
                (time.upper, place),
                xytext=(6, 0),
                textcoords="offset points",
                va="center",
                fontsize=SMALL,
            )
        axis.set_yticks(range(len(entries)), [_label(entry) for entry, _ in entries])
        axis.invert_yaxis()
        axis.set_xscale("log")
        low, high = axis.get_xlim()
        axis.set_xlim(low, high * (high / low) ** 0.3)  # room for the figures
        for place, (_, time) in enumerate(entries):  # from the name to the dot
            axis.plot([low, time.lower], [place, place], color=MUTED, linewidth=0.5, zorder=0)
        axis.spines["left"].set_visible(False)
        axis.tick_params(axis="y", length=0)
        axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: duration(x)))
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.xaxis.set_major_locator(LogLocator(numticks=8))
        axis.set_xlabel("median time of a call, logarithmic")
        kinds = [kind for kind in KIND_COLOURS if any(e.kind == kind for e, _ in entries)]
        handles = [
            Line2D([], [], linestyle="", marker="o", color=KIND_COLOURS[kind], label=kind)
            for kind in kinds
        ]
        note = "x: times as fast as naive" if any(e.speedup_naive for e, _ in entries) else ""
        note = "; ".join(filter(None, [note, result.doubt]))
        titled(fig, "Time by rung", note, handles, len(handles))
    return fig


LEVELS = ("o", "^", "s")  # marks for all accesses, and for the misses of each modelled cache


def roofline_chart(result: LabResult, traffic: Mapping[str, Traffic] | None = None) -> Any:
    """Return a figure of useful GFLOP/s of each rung and peer under this machine's measured limits.

    `traffic` is the traffic at the size of the run. A rung in it has several marks, joined by a
    line: one at the useful operations per byte that its loops access, and one for each cache, at
    the useful operations per byte that the cache misses. Entries without traffic (peers, kernels
    whose accesses cannot be counted) are drawn at the compulsory traffic: each array moved once.
    Raises LabUsageError if there is no roofline.
    """
    entries = [entry for entry, _ in _timed(result) if entry.gigaflops]
    limits = result.roofline
    if limits is None or not entries:
        raise LabUsageError(f"chart: no roofline was measured for {result.workload}")
    compulsory = result.flops / result.bytes
    places = {entry.name: _intensities(entry.name, traffic or {}, compulsory) for entry in entries}
    speeds = np.array([float(entry.gigaflops or 0) for entry in entries])
    every = [x for marks in places.values() for x in marks]
    ridge = limits.gigaflops / limits.gigabytes
    x = np.geomspace(min(every) / 3, max(*every, ridge) * 3, 200)
    with settings():
        fig = figure(WIDTH, 2.2 + 0.22 * max(12, len(entries)))
        axis = fig.subplots()
        _draw_limits(axis, limits, x)
        axis.axvline(compulsory, color=MUTED, linestyle=":", linewidth=1)
        for entry, speed in zip(entries, speeds, strict=True):
            marks, colour = places[entry.name], KIND_COLOURS[entry.kind]
            axis.plot([min(marks), max(marks)], [speed, speed], color=colour, linewidth=1)
            shapes = LEVELS if entry.name in (traffic or {}) else ("D",)
            for mark, shape in zip(marks, shapes, strict=False):
                axis.plot(mark, speed, shape, color=colour, markersize=5)
        low = min(speeds.min(), limits.gigaflops / 100) / 2
        high = 2.2 * max(limits.gigaflops, speeds.max())
        axis.set(xscale="log", yscale="log", xlim=(x[0], x[-1]), ylim=(low, high))
        _label_at_the_edge(axis, entries, speeds, places)
        axis.set_xlabel("useful operations for each byte moved")
        axis.set_ylabel("useful GFLOP/s")
        for scale in (axis.xaxis, axis.yaxis):
            scale.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        words = f"dotted: compulsory traffic of the run, {digits(compulsory)} operations a byte"
        keys = [line for line in axis.lines if not str(line.get_label()).startswith("_")]
        if traffic:
            keys += _level_keys(traffic)
        titled(fig, "Roofline", f"{words}; {result.doubt}" if result.doubt else words, keys, 2)
    return fig


def _intensities(name: str, traffic: Mapping[str, Traffic], compulsory: float) -> tuple[float, ...]:
    found = traffic.get(name)
    return (found.accessed, *found.missed) if found else (compulsory,)


def _draw_limits(axis: Any, limits: Roofline, x: np.ndarray) -> None:
    """Draw the flat roof, and a slope for each bandwidth; their labels are for the legend."""
    slopes = {"of memory": limits.gigabytes}
    slopes |= {f"of {size >> 10} KiB a core": rate for size, rate in limits.caches.items()}
    for style, (name, rate) in zip(("-", "--", "-."), slopes.items(), strict=False):
        label = f"{digits(rate)} GB/s {name}"
        roof = np.minimum(limits.gigaflops, x * rate)
        axis.plot(x, roof, color=INK, linewidth=1.2, linestyle=style, label=label)
    axis.plot([], [], color=INK, label=f"{digits(limits.gigaflops)} GFLOP/s in registers")


def _label_at_the_edge(
    axis: Any,
    entries: Sequence[RungResult],
    speeds: np.ndarray,
    places: Mapping[str, Sequence[float]],
) -> None:
    """Write the rungs' names outside the axes, where no line crosses them."""
    low, high = np.log10(axis.get_ylim())
    heights = spread_out(np.log10(speeds), gap=(high - low) / max(16, len(entries) + 1))
    heights += min(0.0, high - heights.max())
    for entry, speed, height in zip(entries, speeds, heights, strict=True):
        axis.annotate(
            f"{entry.name}  {digits(speed)}",
            (max(places[entry.name]), speed),
            xytext=(1.03, (height - low) / (high - low)),
            textcoords="axes fraction",
            fontsize=SMALL,
            va="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": MUTED, "linewidth": 0.5, "shrinkA": 0},
        )


def _level_keys(traffic: Mapping[str, Traffic]) -> list[Line2D]:
    caches = next(iter(traffic.values())).caches
    names = ["loads and stores", *(f"missed by {one.size >> 10} KiB" for one in caches)]
    return [
        Line2D([], [], linestyle="", marker=shape, color=MUTED, label=name, markersize=5)
        for shape, name in zip(LEVELS, names, strict=False)
    ]


def spread_out(places: np.ndarray, gap: float) -> np.ndarray:
    """Return the positions `places`, moved apart until neighbours are at least `gap` apart."""
    order = np.argsort(places)
    moved = places[order].astype(float)
    for _ in range(200):
        overlap = gap - np.diff(moved)
        if (overlap <= 1e-9).all():
            break
        push = np.maximum(overlap, 0) / 2
        moved[:-1] -= push
        moved[1:] += push
    result = np.empty_like(moved)
    result[order] = moved
    return result


def sweep_chart(result: LabResult) -> Any:
    """Return a figure of useful GFLOP/s of each rung and peer over the sizes of the sweep.

    Raises LabUsageError if there was no sweep.
    """
    if not result.sweep or result.sweep_axis is None:
        raise LabUsageError(f"chart: {result.workload} was not run over sizes: use --sweep")
    kinds = {entry.name: entry.kind for entry in (*result.rungs, *result.peers)}
    names = list(dict.fromkeys(name for point in result.sweep for name in point.seconds))
    with settings():
        fig = figure(WIDTH, 4.4)
        axis = fig.subplots()
        markers = "os^vDP*X<>"
        for number, name in enumerate(names):
            points = [
                (point.size[result.sweep_axis], point.flops / seconds / 1e9)
                for point in result.sweep
                if (seconds := point.seconds.get(name))
            ]
            if points:
                peer = kinds.get(name) == "peer"
                axis.plot(
                    *zip(*points, strict=True),
                    marker=markers[number % len(markers)],
                    markersize=4,
                    linewidth=1.2,
                    linestyle="--" if peer else "-",
                    color=PALETTE[number % len(PALETTE)],
                    label=name,
                )
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        sizes = sorted({point.size[result.sweep_axis] for point in result.sweep})
        axis.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axis.minorticks_off()
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_xlabel(result.sweep_axis)
        axis.set_ylabel("useful GFLOP/s")
        titled(fig, f"Over {result.sweep_axis}", "dashed: other libraries", axis.lines, 4)
    return fig
