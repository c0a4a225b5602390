"""One self-contained HTML page about a run of the lab, and its pictures as PNG and SVG files."""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

from kernel_lab import build, gpu_figures, registry, report_rungs
from kernel_lab.diagrams import charts, stepwise
from kernel_lab.diagrams.style import inline_svg, save
from kernel_lab.errors import LabUsageError
from kernel_lab.factors import against, factor, work
from kernel_lab.report_steps import side_by_side
from kernel_lab.results import LabResult, RungResult
from kernel_lab.traffic import Traffic, processor_caches, traffic
from kernel_lab.workload import Case, describe
from needle_runtime.process.timing import Spread
from needle_runtime.text import counted, digits, duration

PICTURED = 6  # rungs whose memory accesses are drawn
_MARK = '<meta name="generator" content="needle kernel_lab">'  # the template has it, too
_TEMPLATE = Path(__file__).with_name("report.html")


def write(result: LabResult, directory: Path | str) -> Path:
    """Write DIRECTORY/index.html and DIRECTORY/pictures/; return the page's path.

    The page needs no network and no other file. Rungs without a module (peers, refused rungs, a
    result read from JSON) have no code and no pictures. Raises LabUsageError if `check_place` does.
    """
    directory = Path(directory)
    check_place(directory)
    directory.mkdir(parents=True, exist_ok=True)
    pictures = directory / "pictures"
    page = Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=escape(f"{result.title}, {_device(result)}"),
        subtitle=_subtitle(result),
        tiles=_tiles(result),
        table=_table(result) + _static(result),
        charts=_charts(result, pictures),
        side=_side_by_side(result),
        rungs=_rungs(result, pictures),
        published=_published(result),
        notes=_notes(result),
        script=stepwise.script(),
    )
    path = directory / "index.html"
    path.write_text(page, encoding="utf-8")
    return path


def check_place(directory: Path) -> None:
    """Raise LabUsageError if the page would replace one that the lab did not write."""
    page = directory / "index.html"
    if page.exists() and _MARK not in page.read_text(encoding="utf-8", errors="replace")[:2000]:
        raise LabUsageError(f"{page}: is not a report of the lab and was not touched")


def escape(value: Any) -> str:
    """Return text as HTML."""
    return html.escape(str(value))


def _device(result: LabResult) -> str:
    return {"cpu": "CPU", "cuda": "GPU"}.get(result.device, result.device)


def _subtitle(result: LabResult) -> str:
    machine = result.machine
    where = [str(machine.get("processor") or machine.get("system") or "unknown machine")]
    if "threads" in machine:
        where.append(counted(machine["threads"], "thread"))
    target = result.target.get("mcpu") or result.target.get("arch") or result.target.get("kind")
    parts = [describe(result.size), *where, f"compiled for {target}", result.date[:10]]
    text = escape(" · ".join(parts))
    if result.doubt:
        text += f"<br><b>Rough figures:</b> {escape(result.doubt)}"
    if not result.timed:
        text += f"<br><b>Not timed: {escape(result.untimed_reason or '')}</b>"
    return text


def _tiles(result: LabResult) -> str:
    best = result.best()
    tiles = [(work(result.flops), "of useful work a call")]
    if best is not None and best.seconds is not None:
        tiles = [(duration(best.seconds.median), f"best hand-written rung: {best.name}")]
        if best.gigaflops:
            tiles.append((digits(best.gigaflops), "useful GFLOP/s"))
        if best.roofline and not result.doubt:
            tiles.append((f"{best.roofline:.0%}", "of the roofline"))
        if best.speedup_naive:
            tiles.append(_tile(best.speedup_naive.median, "naive", result.doubt))
        for peer in result.peers:
            if peer.seconds is not None and peer.precision == best.precision:
                ratio = peer.seconds.median / best.seconds.median
                tiles.append(_tile(ratio, peer.name, result.doubt))
    cells = "".join(
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(label)}</span></div>'
        for value, label in tiles
    )
    return f'<div class="tiles">{cells}</div>'


def _tile(value: float, other: str, doubt: str | None) -> tuple[str, str]:
    about = "about " if doubt else ""
    text = factor(value)
    if text.endswith("x"):
        return about + text, f"as fast as {other}"
    return about + text.removesuffix(" times slower") + "x", f"slower than {other}"


def _factor(value: Spread | None) -> str:
    if value is None:
        return ""
    quartiles = f"{factor(value.lower)} to {factor(value.upper)}"
    return f'<span title="{quartiles}">{factor(value.median)}</span>'


def _table(result: LabResult) -> str:
    heads = ("rung", "time", "x step before", "expected", "x naive", "GFLOP/s", "roofline", "error")
    entries = [*result.rungs, *result.peers]
    cells = [_cells(entry, result) for entry in entries]
    filled = [number for number in range(len(heads)) if any(row[number] for row in cells)]
    rows = ["<tr>" + "".join(f"<th>{heads[number]}</th>" for number in filled) + "</tr>"]
    best = result.best()
    for entry, row in zip(entries, cells, strict=True):
        style = ' class="best"' if entry is best else ""
        rows.append(f"<tr{style}>{''.join(f'<td>{row[number]}</td>' for number in filled)}</tr>")
    for name, reason in result.peers_missing.items():
        rows.append(
            f'<tr><td>{escape(name)} <span class="kind">peer</span></td>'
            f'<td colspan={len(filled) - 1} class="text muted">{escape(reason)}</td></tr>'
        )
    return f'<div class="scroll"><table class="figures">{"".join(rows)}</table></div>'


def _static(result: LabResult) -> str:
    """Return the static figures of GPU rungs as a table with notes; "" if there are none."""
    rows = gpu_figures.figure_rows(result.rungs)
    if not rows:
        return ""
    lines = ["<tr>" + "".join(f"<th>{head}</th>" for head in gpu_figures.HEADINGS) + "</tr>"]
    for row in rows:
        cells = (
            f'<td class="list">{_unbroken(cell)}</td>' if ", " in cell else f"<td>{cell}</td>"
            for cell in map(escape, row)
        )
        lines.append(f"<tr>{''.join(cells)}</tr>")
    arch = next(entry.static.arch for entry in result.rungs if entry.static)
    return (
        f"<h2>Static figures for {escape(arch)}</h2>\n"
        f'<div class="scroll"><table class="figures">{"".join(lines)}</table></div>\n'
        + "".join(f"<p>{escape(line)}</p>" for line in gpu_figures.notes(result.rungs))
    )


def _unbroken(items: str) -> str:
    """Return a list that a browser breaks only between items."""
    return items.replace(" ", "&nbsp;").replace(",&nbsp;", ", ")


def _cells(entry: RungResult, result: LabResult) -> list[str]:
    name = escape(entry.name) + _kind(entry)
    if entry.refused is not None:
        return [name, f'<span class="muted">refused: {escape(entry.refused)}</span>', *[""] * 6]
    time = entry.seconds
    before = _factor(entry.speedup_previous)
    if entry.surprising and not result.doubt:
        before = f'<span class="bad">{before}</span>'
    shown = '<span class="muted">not timed</span>' if result.timed else ""
    if time:
        quartiles = f"{duration(time.lower)} to {duration(time.upper)}"
        shown = f'<span title="{quartiles}">{duration(time.median)}</span>'
    return [
        name if entry.kind == "peer" else f'<a href="#rung-{escape(entry.name)}">{name}</a>',
        shown,
        before,
        expected_text(entry),
        _factor(entry.speedup_naive),
        digits(entry.gigaflops) if entry.gigaflops else "",
        f"{entry.roofline:.0%}" if entry.roofline and not result.doubt else "",
        f"{entry.check.error:.0e}" if entry.check else "",
    ]


def _kind(entry: RungResult) -> str:
    """Return the kind of a rung, to follow its name; "" if the name already says it."""
    kind = entry.described_kind
    return "" if kind == entry.name else f' <span class="kind">{kind}</span>'


def expected_text(entry: RungResult) -> str:
    """Return the expected factor of a rung, as "2 to 4x"."""
    if entry.expected is None or entry.kind in ("naive", "peer"):
        return ""
    low, high = entry.expected
    return f"{low:g}x" if low == high else f"{low:g} to {high:g}x"


def _charts(result: LabResult, pictures: Path) -> str:
    moved = _traffic(result)
    drawn = []
    for name, chart, said in (
        ("time", charts.time_chart, ""),
        ("roofline", lambda result: charts.roofline_chart(result, moved), _moves(result, moved)),
        ("sweep", charts.sweep_chart, ""),
    ):
        try:
            fig = chart(result)
        except LabUsageError:  # the result has no data for this chart
            continue
        save(fig, pictures / name)
        drawn.append(f"<figure>{inline_svg(fig)}</figure>{said}")
    return "\n".join(drawn)


def _traffic(result: LabResult) -> dict[str, Traffic]:
    """Return the traffic of each timed rung of a CPU ladder, at the size of the run. A rung whose
    traffic cannot be counted is left out."""
    if result.roofline is None or result.device != "cpu":
        return {}
    workload = registry.workload(result.workload)
    case = Case(result.size, build.processor(build.make_target(result.device)))
    caches = processor_caches()
    timed = [e for e in result.rungs if e.seconds is not None and e.module is not None]
    found = {entry.name: traffic(workload, entry.module, case, caches) for entry in timed}
    return {name: one for name, one in found.items() if one is not None}


def _moves(result: LabResult, found: Mapping[str, Traffic]) -> str:
    """Return a sentence that compares the bytes of the best rung with the bytes of the first rung;
    "" unless both are known."""
    first, best = result.rungs[0].name, result.best()
    if best is None or best.name == first or not {best.name, first} <= found.keys():
        return ""
    here, there = found[best.name], found[first]
    levels = ["in loads and stores"]
    levels += [f"in lines that a cache of {cache.size >> 10} KiB misses" for cache in here.caches]
    shares = [
        f"{digits(100 * before / now)}% {level}"
        for now, before, level in zip(
            (here.accessed, *here.missed), (there.accessed, *there.missed), levels, strict=True
        )
    ]
    said = (
        f"Of the bytes that {first} moves for this result, {best.name} moves {', '.join(shares)}."
    )
    return f"<p>{escape(said)}</p>"


def pictured(result: LabResult) -> list[str]:
    """Return the rungs whose accesses are drawn: naive, the best, and the ones with the largest
    gains.

    A schedule found by a search is specific to its size, and is not drawn.
    """
    rungs = [r for r in result.rungs if r.module is not None and r.kind != "search"]
    if not rungs:
        return []
    best = result.best() or rungs[-1]
    gain = {
        entry.name: entry.speedup_previous.median if entry.speedup_previous else 0.0
        for entry in rungs
    }
    ranked = sorted(rungs, key=lambda entry: -gain[entry.name])
    chosen = dict.fromkeys([rungs[0].name, best.name, *(entry.name for entry in ranked)])
    kept = list(chosen)[:PICTURED]
    return [entry.name for entry in rungs if entry.name in kept]


def _side_by_side(result: LabResult) -> str:
    """Return a stepper of the pictured rungs of a CPU ladder, except failed rungs, side by side."""
    if result.device != "cpu":
        return ""
    ladder = registry.ladder(result.workload, result.device)
    case = Case(result.size, build.processor(build.make_target(result.device)))
    rungs = [ladder[name] for name in pictured(result)]
    return side_by_side(ladder.workload, [r for r in rungs if r.kind != "failed"], case)


def _rungs(result: LabResult, pictures: Path) -> str:
    ladder = registry.ladder(result.workload, result.device)
    target = build.make_target(result.device, result.target.get("arch"))
    case = Case(result.size, build.processor(target))
    drawn = pictured(result)
    cards = []
    for entry in result.rungs:
        parts = [report_rungs.reason(entry)]
        if entry.module is not None:
            before = next((r for r in result.rungs if r.name == entry.after), None)
            parts.append(report_rungs.difference(entry, before))
            parts.append(report_rungs.code(entry, result.device, target))
            if entry.name in drawn:
                rung = ladder[entry.name]
                parts.append(report_rungs.memory(ladder.workload, rung, case, pictures))
            elif entry.kind != "search":
                parts.append(
                    f'<h3>Memory accesses</h3><p class="muted">A page has pictures of {PICTURED}'
                    f" rungs; for pictures of this one use --rungs {escape(entry.name)}.</p>"
                )
        is_open = " open" if entry.name in drawn[:1] else ""
        cards.append(
            f'<details class="rung" id="rung-{escape(entry.name)}"{is_open}>'
            f"<summary>{_headline(entry)}</summary><div>{''.join(parts)}</div></details>"
        )
    return "\n".join(cards)


def _headline(entry: RungResult) -> str:
    parts = [f"<b>{escape(entry.name)}</b>{_kind(entry)}"]
    if entry.refused is not None:
        parts.append(f'<span class="muted">refused: {escape(entry.refused)}</span>')
    elif entry.seconds is None:
        parts.append('<span class="muted">not timed</span>')
    else:
        parts.append(f"<span>{duration(entry.seconds.median)}</span>")
        if entry.speedup_previous is not None and entry.after:
            said = against(entry.speedup_previous.median, entry.after)
            parts.append(f"<span>{escape(said)}</span>")
    return " ".join(parts)


def _published(result: LabResult) -> str:
    if not result.published:
        return ""
    rows = ["<tr><th>document</th><th>step</th><th>time</th><th>machine</th><th></th></tr>"]
    for figure in result.published:
        rows.append(
            f"<tr><td>{escape(figure.document)}</td><td class=text>{escape(figure.step)}</td>"
            f"<td>{duration(figure.milliseconds / 1e3)}</td>"
            f"<td class=text>{escape(figure.machine)}</td>"
            f"<td class=text>{escape(figure.note)}</td></tr>"
        )
    return (
        "<h2>The documents' own figures</h2>\n<p>Their authors measured these on other machines, so"
        " they are not directly comparable with the table above.</p>\n"
        f'<div class="scroll"><table class="figures">{"".join(rows)}</table></div>'
    )


def _notes(result: LabResult) -> str:
    checked = "NumPy in float64; the difference is relative to the result's largest magnitude."
    timed = [
        f"Before it was timed, every rung was compared with {checked}",
        "Each contestant has its own process, and blocks alternate. A time is the median of the"
        " blocks, and a factor is the median of the ratios taken block by block (hover for the"
        " quartiles). A factor above 1 means that the rung is faster.",
        "GFLOP/s and the share of the roofline count useful arithmetic and compulsory traffic only:"
        " no padding.",
        "A factor in red is less than half of the least factor that was expected of the step, or"
        " more than 1.5 times the greatest. If the figures are rough, no factor is red.",
    ]
    untimed = [f"Nothing was timed. Rungs with pictures were traced and compared with {checked}"]
    notes = [
        *(timed if result.timed else untimed),
        "Pictures are made by running the scheduled loops step by step, often at a smaller size,"
        " which the picture names. They show the accesses the schedule asks for; the compiler may"
        " keep values in registers.",
    ]
    if result.roofline is not None:
        limits = result.roofline
        notes.append(
            f"This machine's limits, measured in the same run: {limits.gigaflops:.0f} GFLOP/s in"
            f" registers, {limits.gigabytes:.0f} GB/s; the {limits.bound} bound is"
            f" {duration(limits.seconds)}."
        )
        notes.append(
            "In the roofline, each rung has a mark for each level of memory: useful operations for"
            " each byte of its loads and stores, of the lines that miss the first-level cache, and"
            " of the lines that miss the second-level cache too. A mark further right moves fewer"
            " bytes. The bytes are counted at the size that ran: the addresses of every load and"
            " store pass through a model of this processor's caches (sets of lines, the least"
            " recently used one is replaced; no prefetching). Local buffers count as registers."
        )
    return "<ul>" + "".join(f"<li>{escape(note)}</li>" for note in notes) + "</ul>"
