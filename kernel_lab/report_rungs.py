"""The parts of the report about one rung: its reason, the changes since the previous rung, its code
and its memory accesses."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

from kernel_lab import diagrams, ir_views
from kernel_lab.errors import LabError
from kernel_lab.factors import against
from kernel_lab.results import RungResult
from kernel_lab.rung import Rung
from kernel_lab.scaled import ScaledTrace, scaled_trace
from kernel_lab.trace import Trace, gpu, statistics
from kernel_lab.workload import Case, Workload
from needle_runtime.errors import NeedleTVMError

_LINES = 120  # lines of an excerpt of generated code
_DETAIL = 160  # steps of the picture that shows single accesses


def reason(entry: RungResult) -> str:
    """Return the reason for the rung, and a sentence on its expected and measured gain."""
    # Line breaks in a docstring only wrap the text; a blank line starts a new paragraph.
    parts = [f"<p>{html.escape(' '.join(text.split()))}</p>" for text in entry.reason.split("\n\n")]
    if entry.expected is not None and entry.after is not None:
        low, high = entry.expected
        said = f"Expected: {low:g} to {high:g} times as fast as {html.escape(entry.after)}."
        if entry.speedup_previous is not None:
            style = "bad" if entry.surprising else "good"
            measured = against(entry.speedup_previous.median, entry.after)
            said += f' Measured: <b class="{style}">{html.escape(measured)}</b>.'
        parts.append(f"<p>{said}</p>")
    if entry.explained:
        parts.append(f"<p><b>Why it differs:</b> {html.escape(entry.explained)}</p>")
    if entry.source:
        parts.append(_folded("the schedule", f"<pre>{html.escape(entry.source)}</pre>"))
    return "".join(parts)


def difference(entry: RungResult, before: RungResult | None) -> str:
    """Return the rung's TVMScript, and its difference from the script of the rung before it."""
    script = ir_views.tvmscript(entry.module)
    parts = []
    if before is not None and before.module is not None:
        table = ir_views.difference(
            ir_views.tvmscript(before.module), script, before.name, entry.name
        )
        parts.append(
            _folded(f"what changed since {before.name}", f'<div class="scroll">{table}</div>')
        )
    parts.append(_folded("TVMScript", f"<pre>{html.escape(script)}</pre>"))
    return "".join(parts)


def code(entry: RungResult, device: str, target: Any) -> str:
    """Return the code that the compiler generated for the rung, with instruction counts and the hot
    loop."""
    try:
        if device == "cpu":
            compiled = ir_views.cpu_code(entry.module, target)
            return (
                f"<h3>Generated code</h3><p>{html.escape(compiled.summary())}</p>"
                + _folded(f"{compiled.hot.name}, assembly", _excerpt(compiled.hot.lines))
                + _folded(
                    "hot block, LLVM IR", _excerpt(ir_views.llvm_block(compiled.llvm).splitlines())
                )
            )
        on_gpu = ir_views.gpu_code(entry.module, str(target.attrs["arch"]))
    except NeedleTVMError as error:
        return f'<h3>Generated code</h3><p class="muted">{html.escape(str(error))}</p>'
    return (
        f"<h3>Generated code</h3><p>{html.escape(on_gpu.summary())}</p>"
        + _folded("CUDA", _excerpt(on_gpu.cuda.splitlines()))
        + _folded(f"{on_gpu.hot.name}, PTX", _excerpt(on_gpu.hot.lines))
    )


def memory(workload: Workload, rung: Rung, case: Case, folder: Path) -> str:
    """Return pictures and statistics of the rung's accesses, or a line with the reason that there
    are none."""
    try:
        scaled = scaled_trace(workload, rung, case, ignore=("local",))
    except LabError as error:
        return f'<h3>Memory accesses</h3><p class="muted">{html.escape(str(error))}</p>'
    title = f"{workload.name}, {rung.name}"
    figures = []
    for name, fig in pictures(scaled.trace, title, scaled.note).items():
        diagrams.save(fig, folder / f"{rung.name}-{name}")
        figures.append(diagrams.inline_svg(fig))
    stepper = diagrams.stepper(scaled.trace, f"{title}: step by step", scaled.note)
    drawn = "".join(f"<figure>{svg}</figure>" for svg in figures) + stepper
    return "<h3>Memory accesses</h3>" + _verdict(scaled) + drawn + _counts(scaled)


def pictures(trace: Trace, title: str, note: str) -> dict[str, Any]:
    """Return a dict from kinds of picture to the pictures of `trace` that a report shows."""
    space_time = diagrams.space_time
    drawn = {"space-time": space_time(trace, f"{title}: accesses over time", note)}
    last = int(trace.time.max())
    if last > 2 * _DETAIL:
        span = (last // 2, last // 2 + _DETAIL)
        text = f"{title}: {_DETAIL} steps from the middle"
        drawn["detail"] = space_time(trace, text, note, span=span)
    if trace.device == "gpu":
        first = trace.select(trace.worker == 0)
        drawn["space-time-block-0"] = space_time(
            first, f"{title}: block 0 over time", note, by="warp"
        )
        drawn["warp"] = diagrams.warp_view(trace, f"{title}: what a warp moves", note)
        if any(buffer.scope.startswith("shared") for buffer in trace.buffers):
            drawn["banks"] = diagrams.bank_view(trace, f"{title}: banks", note)
        return drawn
    if trace.worker.any():
        drawn["workers"] = space_time(trace, f"{title}: accesses by worker", note, by="worker")
    caches = statistics.model_caches(trace)
    drawn["reuse"] = diagrams.reuse_histogram(trace, f"{title}: reuse", note, caches=caches)
    return drawn


def _verdict(scaled: ScaledTrace) -> str:
    differs = (
        f"differs from NumPy's float64 result by at most {scaled.error:.0e},"
        " relative to the largest value"
    )
    lines = [f"The interpreter's result {differs if scaled.error else 'equals that of NumPy'}."]
    trace = scaled.trace
    if trace.device == "gpu":
        findings = gpu.findings(trace)
        lines += findings or [
            "Found no idle lanes, uncoalesced accesses, bank conflicts or loads of unset memory."
        ]
        return "<ul>" + "".join(f"<li>{html.escape(line)}</li>" for line in lines) + "</ul>"
    for name, size in statistics.model_caches(trace).items():
        model = statistics.cache(trace, size)
        lines.append(
            f"An LRU cache of {size:,} bytes ({name}) would hit {model.hit_rate:.1%} of the line"
            f" accesses and move {model.bytes_moved:,} bytes."
        )
    return f"<p>{html.escape(' '.join(lines))}</p>"


def _counts(scaled: ScaledTrace) -> str:
    heads = ("buffer", "scope", "loads", "stores", "bytes", "line accesses", "lines")
    rows = ["<tr>" + "".join(f"<th>{head}</th>" for head in heads) + "</tr>"]
    for row in statistics.buffer_counts(scaled.trace):
        numbers = (row.loads, row.stores, row.bytes, row.line_accesses, row.lines)
        cells = [html.escape(row.name), html.escape(row.scope), *(f"{n:,}" for n in numbers)]
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    table = f'<div class="scroll"><table class="figures">{"".join(rows)}</table></div>'
    return table + f'<p class="muted">{html.escape(scaled.note)}; lines of 64 bytes.</p>'


def _excerpt(lines: list[str]) -> str:
    more = f"\n... {len(lines) - _LINES} more lines" if len(lines) > _LINES else ""
    return f"<pre>{html.escape(chr(10).join(lines[:_LINES]) + more)}</pre>"


def _folded(title: str, body: str) -> str:
    return f'<details class="part"><summary>{html.escape(title)}</summary>{body}</details>'
