"""The parts of the report about one rung: its reason, its difference, its code, its accesses."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

from kernel_lab import diagrams, ir_views
from kernel_lab.errors import LabError
from kernel_lab.results import RungResult
from kernel_lab.rung import Rung
from kernel_lab.scaled import ScaledTrace, scaled_trace
from kernel_lab.trace import Trace, TraceTooLarge, gpu, statistics
from kernel_lab.workload import Case, Workload
from needle_tvm.errors import NeedleTVMError

_LINES = 120  # of an excerpt of generated code
_STEPPED = (20_000, 100_000, 600_000)  # limits of accesses for the stepwise view, tried in order
_DETAIL = 160  # steps of the picture that shows single accesses
# Small sizes fit into any real cache, so the modelled caches are fractions of the kernel's data.
_CACHES = {"a quarter of the data": 4, "a sixteenth": 16}


def reason(entry: RungResult) -> str:
    """The reason for the rung, and whether it brought the expected gain."""
    # A docstring's lines end where the source's do; only its blank lines mean something.
    parts = [f"<p>{html.escape(' '.join(text.split()))}</p>" for text in entry.reason.split("\n\n")]
    if entry.expected is not None and entry.after is not None:
        low, high = entry.expected
        said = f"Expected against {html.escape(entry.after)}: {low:g} to {high:g} times as fast."
        if entry.speedup_previous is not None:
            style = "bad" if entry.surprising else "good"
            said += f' Measured: <b class="{style}">{entry.speedup_previous.median:.3g}</b>.'
        parts.append(f"<p>{said}</p>")
    if entry.explained:
        parts.append(f"<p><b>Why it differs:</b> {html.escape(entry.explained)}</p>")
    if entry.source:
        parts.append(_folded("the schedule", f"<pre>{html.escape(entry.source)}</pre>"))
    return "".join(parts)


def difference(entry: RungResult, before: RungResult | None) -> str:
    """The rung's TVMScript, and its difference from that of the rung it starts from."""
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
    """The code that the compiler generated for the rung, its counts and its hot loop."""
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
        on_gpu = ir_views.gpu_code(entry.module)
    except NeedleTVMError as error:
        return f'<h3>Generated code</h3><p class="muted">{html.escape(str(error))}</p>'
    return (
        f"<h3>Generated code</h3><p>{html.escape(on_gpu.summary())}</p>"
        + _folded("CUDA", _excerpt(on_gpu.cuda.splitlines()))
        + _folded(f"{on_gpu.hot.name}, PTX", _excerpt(on_gpu.hot.lines))
    )


def memory(workload: Workload, rung: Rung, case: Case, pictures: Path) -> str:
    """Pictures and statistics of the rung's accesses, or a line that says why there are none."""
    try:
        scaled = scaled_trace(workload, rung, case, ignore=("local",))
    except LabError as error:
        return f'<h3>Memory accesses</h3><p class="muted">{html.escape(str(error))}</p>'
    trace, title = scaled.trace, f"{workload.name}, {rung.name}"
    drawn = {"space-time": diagrams.space_time(trace, f"{title}: accesses over time", scaled.note)}
    middle, last = int(trace.time.max()) // 2, int(trace.time.max())
    if last > 2 * _DETAIL:
        drawn["detail"] = diagrams.space_time(
            trace,
            f"{title}: {_DETAIL} steps from the middle",
            scaled.note,
            span=(middle, middle + _DETAIL),
        )
    if trace.device == "gpu":
        drawn["space-time-block-0"] = diagrams.space_time(
            trace.select(trace.worker == 0),
            f"{title}: block 0 over time",
            scaled.note,
            by="warp",
        )
        drawn["warp"] = diagrams.warp_view(trace, f"{title}: what a warp moves", scaled.note)
        if any(buffer.scope.startswith("shared") for buffer in trace.buffers):
            drawn["banks"] = diagrams.bank_view(trace, f"{title}: banks", scaled.note)
    else:
        if trace.worker.any():
            drawn["workers"] = diagrams.space_time(
                trace, f"{title}: accesses by worker", scaled.note, by="worker"
            )
        drawn["reuse"] = diagrams.reuse_histogram(
            trace, f"{title}: reuse", scaled.note, caches=model_caches(trace)
        )
    figures = []
    for name, fig in drawn.items():
        diagrams.save(fig, pictures / f"{rung.name}-{name}")
        figures.append(f"<figure>{diagrams.inline_svg(fig)}</figure>")
    figures.append(_steps(workload, rung, case))
    return "<h3>Memory accesses</h3>" + _verdict(scaled) + "".join(figures) + _counts(scaled)


def _steps(workload: Workload, rung: Rung, case: Case) -> str:
    """The stepwise view of the smallest run that the rung accepts."""
    for limit in _STEPPED:
        try:
            small = scaled_trace(workload, rung, case, limit, ignore=("local",))
        except TraceTooLarge:
            continue
        title = f"{workload.name}, {rung.name}: step by step"
        return diagrams.stepper(small.trace, title, small.note)
    return ""


def _verdict(scaled: ScaledTrace) -> str:
    said = [
        f"The interpreter's result differs from NumPy in float64 by {scaled.error:.0e} of the"
        " largest value."
    ]
    trace = scaled.trace
    if trace.device == "gpu":
        found = gpu.findings(trace)
        said += found or ["No idle lanes, uncoalesced access or bank conflict was found."]
        return "<ul>" + "".join(f"<li>{html.escape(line)}</li>" for line in said) + "</ul>"
    for name, size in model_caches(trace).items():
        model = statistics.cache(trace, size)
        said.append(
            f"An LRU cache of {size:,} bytes ({name}) would hit {model.hit_rate:.1%} of the line"
            f" accesses and move {model.bytes_moved:,} bytes."
        )
    return f"<p>{html.escape(' '.join(said))}</p>"


def model_caches(trace: Trace) -> dict[str, int]:
    """Cache sizes that are fractions of the global data a kernel touches, in whole lines."""
    rows = statistics.buffer_counts(trace)
    lines = sum(row.lines for row in rows if row.scope == "global")
    return {name: max(1, lines // part) * statistics.LINE for name, part in _CACHES.items()}


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
