"""Charts of measured results: time by rung, the roofline, sweeps."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from kernel_lab.diagrams.style import INK, MUTED, PALETTE, SHARED, STORE, figure, settings, titled
from kernel_lab.errors import LabUsageError
from kernel_lab.results import LabResult, RungResult
from needle_tvm.process.timing import Spread
from needle_tvm.words import duration

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
        raise LabUsageError(f"chart: nothing of {result.workload} was timed")
    return entries


def _label(entry: RungResult) -> str:
    return entry.name if entry.precision == "float32" else f"{entry.name} ({entry.precision})"


def time_chart(result: LabResult) -> Any:
    """Return a figure with a bar for the median time of each rung and peer, quartiles as whiskers.

    Raises LabUsageError if nothing was timed, as the other charts do.
    """
    entries = _timed(result)
    with settings():
        fig = figure(9, 1.0 + 0.3 * len(entries))
        axis = fig.subplots()
        for place, (entry, time) in enumerate(entries):
            axis.barh(place, time.median, height=0.7, color=KIND_COLOURS[entry.kind])
            axis.plot([time.lower, time.upper], [place, place], color=INK, linewidth=1)
            text = duration(time.median)
            if entry.speedup_naive is not None and entry.kind != "naive":
                text += f"  ({entry.speedup_naive.median:.3g}x naive)"
            axis.annotate(
                text,
                (time.upper, place),
                xytext=(5, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
            )
        axis.set_yticks(range(len(entries)), [_label(entry) for entry, _ in entries])
        axis.invert_yaxis()
        axis.set_xscale("log")
        low, high = axis.get_xlim()
        axis.set_xlim(low / 1.5, high * (high / low) ** 0.3)
        axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: duration(x)))
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.xaxis.set_major_locator(LogLocator(numticks=8))
        axis.set_xlabel("median time of a call, logarithmic")
        kinds = [kind for kind in KIND_COLOURS if any(e.kind == kind for e, _ in entries)]
        handles = [
            Line2D([], [], linestyle="", marker="s", color=KIND_COLOURS[kind], label=kind)
            for kind in kinds
        ]
        fig.legend(handles=handles, loc="outside upper right", ncols=len(handles))
        titled(fig, "Time by rung", "")
    return fig


def roofline_chart(result: LabResult) -> Any:
    """Return a figure of useful GFLOP/s of each rung and peer under this machine's measured limits.

    The intensity is the workload's own, useful arithmetic over compulsory traffic, so all points
    are in one column. Raises LabUsageError if there is no roofline.
    """
    entries = [entry for entry, _ in _timed(result) if entry.gigaflops]
    limits = result.roofline
    if limits is None or not entries:
        raise LabUsageError(f"chart: no roofline was measured for {result.workload}")
    intensity = result.flops / result.bytes
    with settings():
        fig = figure(9, 4.2)
        axis = fig.subplots()
        x = np.geomspace(min(intensity / 8, 0.1), max(intensity * 64, 64), 200)
        axis.plot(x, np.minimum(limits.gigaflops, x * limits.gigabytes), color=INK, linewidth=1.4)
        axis.axvline(intensity, color=MUTED, linestyle=":", linewidth=1)
        axis.set(xscale="log", yscale="log")
        speeds = np.array([float(entry.gigaflops or 0) for entry in entries])
        for entry, speed in zip(entries, speeds, strict=True):
            axis.plot(intensity, speed, "o", color=KIND_COLOURS[entry.kind], markersize=6)
        low = min(speeds.min(), limits.gigaflops / 100) / 2
        high = 2.2 * max(limits.gigaflops, speeds.max())
        axis.set_ylim(low, high)
        span = np.log10(high / low)
        places = spread_out(np.log10(speeds), gap=span * 0.047)
        for entry, speed, place in zip(entries, speeds, places, strict=True):
            axis.annotate(
                f"{entry.name}  {speed:.3g}",
                (intensity, speed),
                xytext=(intensity * 2.2, 10**place),
                fontsize=7.5,
                va="center",
                arrowprops={"arrowstyle": "-", "color": MUTED, "linewidth": 0.6},
            )
        axis.annotate(
            f"{limits.gigaflops:.0f} GFLOP/s in registers",
            (x[-1], limits.gigaflops),
            xytext=(0, 4),
            textcoords="offset points",
            ha="right",
            fontsize=8,
        )
        axis.annotate(
            f"{limits.gigabytes:.0f} GB/s",
            (x[0], x[0] * limits.gigabytes),
            xytext=(18, 0),
            textcoords="offset points",
            fontsize=8,
        ) if x[0] * limits.gigabytes > low else None
        axis.set_xlabel("useful operations for each byte that must move")
        axis.set_ylabel("useful GFLOP/s")
        for scale in (axis.xaxis, axis.yaxis):
            scale.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        titled(
            fig, "Roofline", f"dotted: {result.workload} at this size, {intensity:.3g} FLOP/byte"
        )
    return fig


def spread_out(places: np.ndarray, gap: float) -> np.ndarray:
    """The places moved apart so that neighbours are at least `gap` from each other."""
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
        raise LabUsageError(f"chart: {result.workload} was not run over sizes")
    kinds = {entry.name: entry.kind for entry in (*result.rungs, *result.peers)}
    names = list(dict.fromkeys(name for point in result.sweep for name in point.seconds))
    with settings():
        fig = figure(9, 4)
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
        fig.legend(loc="outside right upper")
        titled(fig, f"Over {result.sweep_axis}", "dashed: other libraries")
    return fig
