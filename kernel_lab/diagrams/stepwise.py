"""A stepwise view for a page: the buffers as grids, in which a slider moves through time."""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernel_lab.diagrams import steps
from kernel_lab.diagrams.step_svg import step_svg
from kernel_lab.diagrams.style import in_notebook
from kernel_lab.errors import LabUsageError
from kernel_lab.trace import Trace

_STILL = 0.62  # the still picture's position in a run, from 0 to 1
_ROOM, _HEIGHT = 400, 300  # size of one of several pictures, before they are scaled to the page
_ALONE = (800, 420)
_CODE = Path(__file__).with_name("stepwise.js")
_STYLE = Path(__file__).with_name("stepwise.css")


def stepper(trace: Trace, title: str, note: str = "") -> str:
    """Return an HTML <figure> that steps through the run; a page needs `script()` once after it.

    It shows the whole run; if a run has more than `steps.STEPS` steps or `steps.RUNS` stretches of
    elements, it shows the beginning and says so. The loops' variables are shown if the trace
    recorded them. Local memory is left out if there is other memory. Raises LabUsageError for an
    empty trace.
    """
    return side_by_side({"": trace}, title, note)


def side_by_side(
    traces: Mapping[str, Trace], title: str, note: str = "", cache: int | None = None
) -> str:
    """Return an HTML <figure> that steps through several runs at once, step for step.

    `traces` are the runs by name. With `cache` (bytes), each run has an LRU cache of that size for
    its global memory: the lines in it are tinted, and its misses are counted. A cache belongs to
    one worker, so the traces must come from `trace(..., cores=1)`. Raises LabUsageError for other
    traces, and for an empty trace. Without JavaScript, and in print, each run has a still picture.
    """
    room, height = (_ROOM, _HEIGHT) if len(traces) > 1 else _ALONE
    runs, views = [], []
    for name, trace in traces.items():
        if cache is not None and (trace.device != "cpu" or trace.worker.any()):
            raise LabUsageError(
                f"side_by_side: {name} has several workers, but a cache belongs to one: trace with"
                " cores=1"
            )
        run, left = steps.steps_of(trace, room, height, cache)
        runs.append(run | {"name": name})
        taken = len(run["steps"])
        if left:
            total = taken + left
            note += f"; {name} the first {taken:,} of {total:,} steps".replace(";  the", "; the")
        views.append(_view(runs[-1], room))
    most = max(len(run["steps"]) for run in runs)
    pace = '<label><input type="checkbox"> all to the end together</label>'
    return (
        f'<figure class="stepper" tabindex="0" data-room="{room}">'
        f"<figcaption><b>{html.escape(title)}</b><br>"
        f'<span class="note">{html.escape(note)}</span></figcaption>'
        '<div class="controls"><button type="button">play</button>'
        f'<input type="range" min="0" max="{most - 1}" value="0" aria-label="time step">'
        f"{pace if len(runs) > 1 else ''}"
        '<span class="note keys">arrows: a step; with shift: many; home, end; space: play</span>'
        "</div>"
        f'<div class="views{" several" if len(runs) > 1 else ""}">{"".join(views)}</div>'
        f'<script type="application/octet-stream">{steps.packed(runs)}</script></figure>'
    )


def _view(run: dict[str, Any], room: int) -> str:
    """Return a run's part of the page: the lines of text about its step, and a live and a still
    picture."""
    now = round(_STILL * (len(run["steps"]) - 1))
    return (
        f'<div class="view"><b>{html.escape(run["name"])}</b>'
        f'<div class="still said">{said(run, now)}</div>{step_svg(run, now, room)}'
        '<output class="said" aria-live="off"></output><canvas></canvas></div>'
    )


def said(run: dict[str, Any], now: int) -> str:
    """Return a page's lines about a step, as HTML; stepwise.js writes the same."""
    site, accesses, *_ = run["steps"][now]
    _, is_store, text, around = run["sites"][site]
    many = f", {accesses:,} accesses" if accesses > 1 else ""
    lines = [
        f"step {now + 1:,} of {len(run['steps']):,}",
        f"<code>{'store' if is_store else 'load'} {html.escape(text)}</code>{many}",
    ]
    if run["loops"]:
        named = [
            (*run["loops"][loop], value)
            for loop, value in zip(around, run["values"][now], strict=True)
        ]
        lines.append(" ".join(f"<i>{n}={v}<s>/{e}</s></i>" for n, e, v in named) or "no loop")
    if run["cache"]:
        misses = sum(step <= now for step, *_ in run["misses"])
        lines.insert(0, f"<b>{misses:,} {'miss' if misses == 1 else 'misses'}</b>")
    return "".join(f"<span>{line}</span>" for line in lines)


def unpacked(figure: str) -> list[dict[str, Any]]:
    """Return the data in a stepper's <figure>: the results of `steps.steps_of` for each run."""
    return steps.unpacked(figure.rpartition('octet-stream">')[2].partition("<")[0])


def script() -> str:
    """Return the <style> and <script> elements that activate all steppers of a page."""
    return f"<style>\n{style()}</style>\n<script>\n{_CODE.read_text(encoding='utf-8')}</script>"


def style() -> str:
    """Return the style sheet of steppers."""
    return _STYLE.read_text(encoding="utf-8")


def save_page(figure: str, path: Path | str) -> Path:
    """Write a stepper as a separate page; return the path.

    In a notebook it also becomes an output of the cell.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(figure), encoding="utf-8")
    if in_notebook():
        from IPython.display import display

        display({"text/html": f"{figure}\n{script()}", "text/plain": path.name}, raw=True)
    return path


def page(figure: str) -> str:
    """Return a whole HTML page of one stepper, or of several figures in one text."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<title>step by step</title><style>:root { color-scheme: light dark; }"
        " body { font: 15px/1.5 system-ui, sans-serif; max-width: 1080px; margin: 1rem auto;"
        f" padding: 0 1rem; }}</style></head><body>\n{figure}\n{script()}\n</body></html>\n"
    )
