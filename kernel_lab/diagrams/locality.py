"""Histograms of reuse distances: the distances between uses of the same cache line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.ticker import FuncFormatter

from kernel_lab.diagrams.space_time import described
from kernel_lab.diagrams.style import MUTED, SLATE, SMALL, STORE, WIDTH, figure, settings, titled
from kernel_lab.errors import LabUsageError
from kernel_lab.trace import Trace, statistics

CACHES = {"32 KiB": 32 << 10, "1 MiB": 1 << 20}


def reuse_histogram(
    trace: Trace,
    title: str,
    note: str = "",
    *,
    line: int = statistics.LINE,
    caches: Mapping[str, int] = CACHES,
) -> Any:
    """Return a figure of accesses by reuse distance in cache lines, with the hit rate of an LRU
    cache of that many lines. `caches` (name to bytes) are marked. Raises LabUsageError if global
    memory is not accessed."""
    distances = statistics.reuse_distances(trace, line)
    if not len(distances):
        raise LabUsageError(f"reuse_histogram: {trace.name} has no access to global memory")
    cold, bins = statistics.reuse_histogram(distances)
    with settings():
        fig = figure(WIDTH, 3.4)
        axis = fig.subplots()
        places = np.arange(len(bins))
        axis.bar(places, bins, width=0.8, color=SLATE, label="used again")
        axis.bar([-1.5], [cold], width=0.8, color=MUTED, label="first use")
        axis.set_xticks(
            [-1.5, *places.tolist()],
            ["first\nuse", *(bin_label(place) for place in range(len(bins)))],
        )
        axis.set_xlabel(f"distinct {line}-byte lines since the line was last used")
        axis.set_ylabel("line accesses")
        axis.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.0f}"))
        rate = axis.twinx()
        rate.plot(
            places + 0.5,
            100 * np.cumsum(bins) / len(distances),
            color=STORE,
            marker=".",
            label="hit rate of an LRU cache that large",
        )
        rate.set_ylim(0, 103)
        rate.set_ylabel("hit rate, %")
        rate.spines["right"].set_visible(True)
        last = float(len(bins)) + 0.5
        for name, size in caches.items():
            # Bin b holds distances up to 2**b - 1: a cache of 2**b lines hits in bins 0 to b.
            place = np.log2(size / line) + 0.5
            if place < last:
                axis.axvline(place, color=MUTED, linestyle="--", linewidth=0.9)
                axis.annotate(
                    name,
                    (place, 1),
                    xycoords=("data", "axes fraction"),
                    rotation=90,
                    xytext=(-2, -2),
                    textcoords="offset points",
                    va="top",
                    ha="right",
                    fontsize=SMALL,
                    color=MUTED,
                )
        keys = [*axis.get_legend_handles_labels()[0], *rate.get_legend_handles_labels()[0]]
        titled(fig, title, described(trace, note), keys)
    return fig


def bin_label(place: int) -> str:
    """Return the label of a bin, the distances that it counts: 0, 1, 2-3, 4-7, ..."""
    if place < 2:
        return str(place)
    low = 1 << (place - 1)
    return f"{_short(low)}-\n{_short(2 * low - 1)}"


def _short(number: int) -> str:
    return str(number) if number < 10_000 else f"{number / 1000:.0f}k"
