"""The atlas: a page for each ladder of the lab.

A page is a short text, docs/atlas/WORKLOAD-DEVICE.md, with two placeholders. `<!-- figures -->`
becomes a table of the published figures and ours; `<!-- rungs -->` becomes a section for each rung.
A section has the rung's changes, a picture, the prediction and the measurement. Sections come from
the docstrings of the rungs and from docs/results.
"""

from __future__ import annotations

import functools
import multiprocessing
import posixpath
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from docs.website import measured
from docs.website.measured import Measured
from docs.website.pages import ROOT
from kernel_lab import registry, source
from kernel_lab.build import make_target, processor
from kernel_lab.factors import against
from kernel_lab.ir_views import unified
from kernel_lab.rung import Ladder, Rung
from kernel_lab.rung_diff import rung_diff
from kernel_lab.scaled import ScaledTrace, scaled_trace
from kernel_lab.trace import Trace
from kernel_lab.workload import Case, Processor, Published, describe
from needle_runtime.process.threads import available_cores

ATLAS = "docs/atlas"
FIGURES, RUNGS = "<!-- figures -->", "<!-- rungs -->"
# Pictures, predictions and measured figures are for this processor, whatever machine builds them.
MACHINE = Processor(cores=2, registers=32, lanes=16, dots=True)
SOURCES = {
    "000": "Ye's TVM_tutorial",
    "001": "TVM Tutorial",
    "002": "Ye's GEMM article",
    "004": "Assignment A3",
}
_HOLDS, _DIFFERS = "When it differs.", "Why they differ."
_LONG = 40  # a difference with this many lines is folded

# The picture that shows the idea of a rung: who works (worker), the requests of a warp (warp), its
# banks (bank), one block over time (block), or all blocks over time (whole). A rung that is not
# listed shows its buffers over time or, if parallel, its workers; on a GPU, a warp's requests.
_VIEWS = {
    ("gemm", "cpu"): {"cache_write": "worker"},
    ("int8_gemm", "cpu"): {"cache_block": "worker"},
    ("gemm", "cuda"): {
        "shared_memory": "block",
        "register_tile": "bank",
        "double_buffer": "block",
        "large_tiles": "bank",
        "warp_tiles": "block",
        "async_copies": "block",
        "tensor_cores": "bank",
        "tensor_core_tiles": "bank",
        "tensor_core_padded": "bank",
        "tensor_core_pipeline": "block",
    },
    ("conv1d", "cuda"): {
        "shared_memory": "block",
        "unroll": "block",
        "register_tile": "bank",
        "whole_tiles": "bank",
    },
    ("depthwise", "cuda"): {"shared_memory": "bank", "unroll": "bank"},
    ("separable", "cuda"): {"naive": "whole", "threads_2d": "whole", "fuse": "block"},
    ("gelu_matmul", "cuda"): {"naive": "whole", "fuse": "whole"},
}


def page_of(ladder: Ladder) -> str:
    """Return the path of a ladder's page in the repository."""
    return f"{ATLAS}/{ladder.workload.name}-{ladder.device}.md"


def texts() -> dict[Path, str]:
    """Return a dict from each page's file to its text. The ladders are drawn on all cores at
    once."""
    context = multiprocessing.get_context("spawn")  # each process has its own compiler
    ladders = sorted(registry.LADDERS, key=lambda key: -len(registry.LADDERS[key].rungs))
    with ProcessPoolExecutor(available_cores(), mp_context=context) as pool:
        made = list(pool.map(text, *zip(*ladders, strict=True)))
    pages = [ROOT / page_of(registry.LADDERS[key]) for key in ladders]
    return dict(zip(pages, made, strict=True))


def text(name: str, device: str) -> str:
    """Return the Markdown of a ladder's page, with its figures and its rungs."""
    ladder = registry.ladder(name, device)
    page = (ROOT / page_of(ladder)).read_text(encoding="utf-8")
    return page.replace(FIGURES, figures(ladder)).replace(RUNGS, rungs(ladder))


# The published figures


def figures(ladder: Ladder) -> str:
    """Return a table of the published figures and ours.

    Every published figure has a row, with our rung or peer that does the same. The other rows are
    our first rung, our fastest one, and the peers.
    """
    found = measured.tables().get((ladder.workload.name, ladder.device))
    published = ladder.workload.published.get(ladder.device, ())
    rows = [_figure(each, found) for each in published]
    named = {each.rung for each in published}
    rows += [
        f"| | | {_named(ladder, name)} | {_milliseconds(found, name)} | |"
        for name in _ours(ladder, found)
        if name not in named
    ]
    head = "| published | ms | ours | ms | source |\n|---|---|---|---|---|"
    if not published:
        head = "| ours | ms |\n|---|---|"
        rows = [row.removeprefix("| | ").removesuffix(" |") for row in rows]
    return "\n".join([head, *rows])


def _ours(ladder: Ladder, found: Measured | None) -> list[str]:
    """Return the names of our rows: the first rung, the fastest one, and the peers."""
    if found is None:
        last = [rung.name for rung in ladder.rungs if rung.kind != "failed"][-1]
        return [ladder.rungs[0].name, last, "NumPy, CPU", "PyTorch, CPU", "PyTorch"]
    times = {rung.name: float(found.rows[rung.name].milliseconds) for rung in ladder.rungs}
    peers = [row.name for row in found.rows.values() if row.kind == "peer"]
    return [ladder.rungs[0].name, min(times, key=lambda name: times[name]), *peers]


def _figure(each: Published, found: Measured | None) -> str:
    where = f"{SOURCES[each.document]}, {each.machine.partition(', from')[0]}"
    if not each.rung:
        return f"| {each.step} | {each.milliseconds:g} | | | {where} |"
    own = f"`{each.rung}`" if each.rung.islower() else each.rung
    ours = _milliseconds(found, each.rung)
    return f"| {each.step} | {each.milliseconds:g} | {own} | {ours} | {where} |"


def _named(ladder: Ladder, name: str) -> str:
    return f"`{name}`" if any(rung.name == name for rung in ladder.rungs) else name


def _milliseconds(found: Measured | None, name: str) -> str:
    row = found.row(name) if found else None
    return row.milliseconds if row else "not measured"


# The rungs


def rungs(ladder: Ladder) -> str:
    """Return a section for each rung of the ladder."""
    return "\n\n".join(section(ladder, rung) for rung in ladder.rungs)


def section(ladder: Ladder, rung: Rung) -> str:
    """Return the section of a rung, in Markdown."""
    fails = ", which fails" if rung.kind == "failed" else ""
    said = [part for part in rung.reason.split("\n\n") if not part.startswith("Prediction:")]
    parts = [
        f"### {rung.name}{fails}",
        *(_sentence(part) for part in said),
        *_changes(ladder, rung),
        *_drawn(ladder, rung),
        *_told(ladder, rung),
    ]
    return "\n\n".join(part for part in parts if part)


def _sentence(part: str) -> str:
    """Return a paragraph of a docstring as one line, without the prefix of a failed rung."""
    line = " ".join(part.split()).removeprefix("FAILS: ")
    return line[:1].upper() + line[1:]


def _told(ladder: Ladder, rung: Rung) -> list[str]:
    """Return the prediction, the measurement, and the reason for their difference."""
    found = measured.tables().get((ladder.workload.name, ladder.device))
    row = found.rows.get(rung.name) if found else None
    if rung.after is None:
        return [f"**Measured.** {row.time}." if row else "**Not measured.**"]
    low, high = rung.expected
    predicted = f"**Predicted: {low:g} to {high:g} times the speed of `{rung.after}`.**"
    parts = [f"{predicted} {_sentence(rung.prediction)}"]
    if found and row and row.factor is not None:
        page = posixpath.relpath(found.page, ATLAS)
        parts.append(
            f"**Measured: {row.spread} times**, {row.time} a call ([all figures]({page}))."
        )
    else:
        parts.append(f"**Not measured.** {_published(ladder, rung)}".rstrip())
    if rung.explained:
        holds = row is None or row.factor is None or low <= row.factor <= high
        parts.append(f"**{_HOLDS if holds else _DIFFERS}** {_sentence(rung.explained)}.")
    return parts


def _published(ladder: Ladder, rung: Rung) -> str:
    """Return a sentence for each source that measured the same step."""
    given = ladder.workload.published.get(ladder.device, ())
    pairs = [
        (new, old)
        for new in given
        for old in given
        if (new.rung, old.rung) == (rung.name, rung.after)
        and new.document == old.document
        and new.machine == old.machine
    ]
    return " ".join(
        f"{SOURCES[new.document]} has {new.milliseconds:g} ms,"
        f" {against(old.milliseconds / new.milliseconds, f'the {old.milliseconds:g} ms before')}."
        for new, old in pairs
    )


def _changes(ladder: Ladder, rung: Rung) -> list[str]:
    """Return the changes to the code and the IR of the rung before; for a first rung, its own code
    and IR."""
    made = _code(rung)
    found = rung_diff(ladder, rung.name, _case(ladder))
    if rung.after is None:
        return [
            _folded("Its code", "python", made),
            _folded(f"Its IR at {describe(found.size)}", "python", found.text),
        ]
    lines = unified(_code(ladder[rung.after]), made)
    title = f"What it changes in the code of {rung.after}"
    own = f"```diff\n{lines.rstrip()}\n```" if lines.count("\n") < _LONG else None
    return [
        own or _folded(title, "diff", lines),
        _folded(f"What it changes in the IR of {rung.after}", "diff", found.text),
    ]


def _code(rung: Rung) -> str:
    pieces = source.parts(rung.define) | source.parts(rung.schedule)
    return source.listing(pieces)


def _folded(title: str, language: str, code: str) -> str:
    return "\n".join(
        [
            '<details markdown="1" class="ir">',
            f"<summary>{title}</summary>",
            "",
            f"```{language}\n{code.rstrip()}\n```",
            "",
            "</details>",
        ]
    )


# The pictures


def _case(ladder: Ladder) -> Case:
    size = ladder.workload.size(ladder.device)
    if ladder.device == "cpu":
        return Case(size, MACHINE)
    return Case(size, processor(make_target(ladder.device)))


@functools.cache
def _traced(name: str, device: str, rung: str) -> ScaledTrace:
    ladder = registry.ladder(name, device)
    return scaled_trace(ladder.workload, ladder[rung], _case(ladder), ignore=("local",))


def _drawn(ladder: Ladder, rung: Rung) -> list[str]:
    """Return the picture of the rung and its caption. If the rung makes the same accesses as the
    one before, in the same order, a sentence says so instead."""
    key = (ladder.workload.name, ladder.device)
    scaled = _traced(*key, rung.name)
    if rung.after and _same(scaled, _traced(*key, rung.after)):
        same = f"It makes `{rung.after}`'s accesses in the same order, so the picture is the same."
        return [f"{same} {rung.caption}".rstrip()]
    return [_picture(key, rung.name, scaled), rung.caption]


def _same(one: ScaledTrace, other: ScaledTrace) -> bool:
    """Return whether two traces have the same accesses to the same buffers at the same times."""
    if one.size != other.size or len(one.trace) != len(other.trace):
        return False
    pairs = zip(_accesses(one.trace), _accesses(other.trace), strict=True)
    return all(np.array_equal(mine, theirs) for mine, theirs in pairs)


def _accesses(trace: Trace) -> list[np.ndarray[Any, Any]]:
    names = np.array([buffer.name for buffer in trace.buffers])[trace.buffer]
    return [names, trace.index, trace.time, trace.worker, trace.thread, trace.is_store]


def _picture(key: tuple[str, str], name: str, scaled: ScaledTrace) -> str:
    from kernel_lab import diagrams

    trace, title = scaled.trace, f"{key[0]}, {name}"
    plain = "warp" if key[1] == "cuda" else "worker" if "parallel" in name else "buffer"
    view = _VIEWS.get(key, {}).get(name, plain)
    if view == "warp":
        drawn = diagrams.warp_view(trace, title, scaled.note)
    elif view == "bank":
        drawn = diagrams.bank_view(trace, title, scaled.note)
    elif view == "block":
        first = trace.select(trace.worker == 0)
        drawn = diagrams.space_time(first, f"{title}: block 0", scaled.note, by="warp")
    else:
        by = "worker" if view == "worker" else "buffer"
        drawn = diagrams.space_time(trace, title, scaled.note, by=by)
    label = f'role="img" aria-label="{name}: accesses" data-search-exclude'
    svg = diagrams.inline_svg(drawn).replace("<svg", f"<svg {label}", 1)
    return f'<figure class="drawn">{" ".join(svg.split())}</figure>'
