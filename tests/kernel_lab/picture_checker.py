"""Hold pictures to traces: sampled pixels and marks are looked up in the trace they claim to show.

Nothing here calls the code that draws. What a picture says about itself (the legend, the axes, the
note's size of a cell) is read from the picture, and the trace is asked whether it is so.
"""

from __future__ import annotations

import dataclasses
import re
from collections import OrderedDict

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.text import Text

from kernel_lab.diagrams import stepwise
from kernel_lab.diagrams.style import PALETTE
from kernel_lab.trace import statistics

SAMPLES = 60  # cells of each panel
_DPI = 130
_LEAST = 0.4  # opacity of a cell with a single access
_CLOSE = 0.02  # of a colour's channels, 0 to 1: half of it is rounding to bytes


def problems(kind, picture, trace, seed):
    """What is wrong in a picture of a trace, as a list of sentences."""
    rng = np.random.default_rng(seed)
    if kind == "stepper":
        return side_by_side(picture, {"": trace}, seed)
    if kind == "reuse":
        return _reuse(picture, trace, rng)
    if kind == "warp":
        return _warp(picture, trace)
    if kind == "banks":
        return _banks(picture, trace)
    column = {"workers": "worker", "space-time-block-0": "warp"}.get(kind, "is_store")
    shown = trace.select(trace.worker == 0) if kind == "space-time-block-0" else trace
    return _raster(picture, shown, column, rng)


def _raster(figure, trace, column, rng):
    found = []
    canvas = FigureCanvasAgg(figure)
    figure.set_dpi(_DPI)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())[..., :3] / 255.0
    note = " ".join(figure._supxlabel.get_text().split())
    if f"{len(trace):,} access" not in note:
        found.append(f"the note does not say that there are {len(trace):,} accesses: {note}")
    legend = {
        text.get_text(): to_rgb(handle.get_facecolor()[:3])
        for box in figure.legends
        for text, handle in zip(box.get_texts(), box.legend_handles, strict=True)
    }
    first, last = (edge for edge in figure.axes[-1].get_xlim())
    inside = trace.select((trace.time > first) & (trace.time < last))
    if "steps from the middle" not in _title(figure) and len(inside) < len(trace):
        found.append(f"{len(trace) - len(inside)} accesses lie outside of the time axis")
    scopes = {info.name: info.scope for info in trace.buffers}
    names = {trace.buffers[number].name for number in np.unique(inside.buffer)}
    names = {name for name in names if scopes[name] != "local"} or names
    panels = {axis.get_ylabel().split("\n")[0]: axis for axis in figure.axes if axis.images}
    found += _labels(figure, canvas.get_renderer())
    for axis in figure.axes:
        if not axis.images:
            found += _turns(axis, inside, canvas.get_renderer())
    if set(panels) != names:
        return [*found, f"the panels are {set(panels)}, the accessed buffers {names}"]
    for name, axis in panels.items():
        mine = inside.of_buffer(name)
        if column == "worker" and "a copy each" in axis.get_ylabel():
            size = next(info.size for info in trace.buffers if info.name == name)
            mine = dataclasses.replace(mine, index=mine.index + mine.worker * size)
        found += _frame(axis, name, mine)
        expected = _expected_colours(trace, name, column, legend)
        found += _panel(axis, name, mine, column, expected, _cell(note, name), pixels, rng)
    return found


def _labels(figure, renderer):
    """Labels that lie on each other, or reach out of the picture."""
    texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text()]
    shown = [(text.get_text(), text.get_window_extent(renderer)) for text in texts]
    left, low, right, top = figure.bbox.extents
    # matplotlib makes labels for ticks that lie outside of the axis, and does not draw them.
    ticks = {
        id(label)
        for axis in figure.axes
        for ruler, view in ((axis.xaxis, axis.get_xlim()), (axis.yaxis, axis.get_ylim()))
        for tick in ruler.get_major_ticks()
        for label in (tick.label1, tick.label2)
        if not min(view) <= tick.get_loc() <= max(view) or not label.get_visible()
    }
    shown = [one for one, text in zip(shown, texts, strict=True) if id(text) not in ticks]
    found = [
        f"the label {said!r} reaches out of the picture"
        for said, box in shown
        if box.x0 < left - 1 or box.x1 > right + 1 or box.y0 < low - 1 or box.y1 > top + 1
    ]
    for number, (said, box) in enumerate(shown):
        for other, its in shown[number + 1 :]:
            across = min(box.x1, its.x1) - max(box.x0, its.x0)
            if across > 1 and min(box.y1, its.y1) - max(box.y0, its.y0) > 1:
                found.append(f"the labels {said!r} and {other!r} lie on each other")
    return found


def _turns(axis, trace, renderer):
    """Each span is one turn of the loop that its row names, from its first access to its last, and
    a label in it is the loop's value there."""
    names = [label.get_text() for label in axis.get_yticklabels()]
    # Of the loops of one name, which are never inside each other, -1 is the value of all but one.
    loops = {}
    for loop in trace.loops:
        loops[loop.name] = np.maximum(loops.get(loop.name, -1), loop.value)
    found, spans = [], []
    for span in axis.collections:
        (corners,) = (path.vertices for path in span.get_paths())
        (left, low), (right, high) = corners.min(axis=0), corners.max(axis=0)
        name = names[round((low + high) / 2)]
        inside = (trace.time > left) & (trace.time < right)
        values = np.unique(loops[name][inside]) if name in loops else np.array([])
        if len(values) != 1 or values[0] < 0:
            found.append(f"turns: {name} from {left} to {right} has the values {values}")
            continue
        edges = (trace.time == left + 0.5) | (trace.time == right - 0.5)
        if len(np.unique(trace.time[edges])) != len({left + 0.5, right - 0.5}):
            found.append(f"turns: {name} from {left} to {right} begins or ends without an access")
        spans.append((name, values[0], span.get_window_extent(renderer), left, right))
    for text in axis.texts:
        box = text.get_window_extent(renderer)
        middle = (box.x0 + 2, (box.y0 + box.y1) / 2)
        said = text.get_text()
        if not any(str(value) == said and b.contains(*middle) for _, value, b, *_ in spans):
            found.append(f"turns: the label {said} is in no span of that value")
    for name in set(names):
        mine = [value for one, value, *_ in spans if one == name]
        times = np.unique(trace.time[loops[name] >= 0]) if name in loops else np.array([])
        drawn = sum(
            ((left < times) & (times < right)).astype(int)
            for one, _, _, left, right in spans
            if one == name
        )
        # A thread that skips an access, at the image's border say, has steps without one.
        if len(times) and not np.all(drawn == 1):
            found.append(f"turns: {name} has steps that are in no turn, or in several")
        exact = set(np.unique(loops[name]).tolist()) - {-1} if name in loops else set()
        if set(mine) != exact:
            found.append(f"turns: {name} is drawn with {sorted(set(mine))}, it takes {exact}")
    return found


def _frame(axis, name, mine):
    """A frame holds what a worker touches within its time, and the text beside it says how much."""
    frames = [patch for patch in axis.patches if patch.get_label() == "tile"]
    if not frames:
        return []
    (left, low), (right, high) = frames[0].get_bbox().get_points()
    within = mine.select((mine.time > left) & (mine.time < right))
    within = within.select(within.worker == within.worker.min(initial=1 << 30))
    if not len(within) or (low, high) != (within.index.min() - 0.5, within.index.max() + 0.5):
        return [f"{name}: the frame from {low} to {high} does not hold what its turn touches"]
    turn, size = axis.texts[-1].get_text().split("\n")
    loop, value = turn.split("=")
    values = [one.value for one in within.loops if one.name == loop]
    if not any((one == int(value)).all() for one in values):
        return [f"{name}: the frame is not of the turn {turn}"]
    if " x " not in size:
        count = len(np.unique(within.index))
        exact = f"{count:,} element{'' if count == 1 else 's'}"
    else:
        shape = next(info.shape for info in within.buffers if info.name == name)
        places = np.stack(np.unravel_index(within.index, shape))
        exact = " x ".join(f"{n:,}" for n in (np.ptp(places, axis=1) + 1).tolist())
    return [] if size == exact else [f"{name}: the tile is said to be {size}, it is {exact}"]


def _near_frame(axis, start, bottom, steps, elements):
    """Whether a frame's line may cover a cell."""
    for patch in axis.patches:
        (left, low), (right, high) = patch.get_bbox().get_points()
        column = any(start - steps <= edge <= start + 2 * steps for edge in (left, right))
        row = any(bottom - elements <= edge <= bottom + 2 * elements for edge in (low, high))
        if column or row:
            return True
    return False


def _cell(note, name):
    """The steps and elements that a cell of this buffer's panel holds, by the note."""
    said = re.search(r"a cell is ([\d,]+) steps? by ([^;]*)", note)
    alone = re.match(r"([\d,]+) elements?$", said[2])
    elements = alone[1] if alone else re.search(rf"\b{name} ([\d,]*\d)", said[2])[1]
    return tuple(int(text.replace(",", "")) for text in (said[1], elements))


def _title(figure):
    """The title of a figure, above its legend."""
    return figure.legends[0].get_title().get_text()


def _expected_colours(trace, name, column, legend):
    """Value or "several" -> colour, as far as the legend names them."""
    several = legend.get("loads and stores", legend.get("several in one cell"))
    colours = {"several": several} if several else {}
    if column == "is_store":
        colours[1] = legend["store"]
        arguments = list(trace.arrays)
        if name in arguments:
            colours[0] = to_rgb(PALETTE[arguments.index(name) % len(PALETTE)])
        return colours
    for label, colour in legend.items():
        if (said := re.match(r"(?:worker|block|warp|thread) (\d+)$", label)) is not None:
            colours[int(said[1])] = colour
    return colours


def _panel(axis, name, mine, column, expected, cell, pixels, rng):
    found, shades = [], []
    steps, elements = cell
    left, low = axis.get_xlim()[0] + 0.5, axis.get_ylim()[0] + 0.5
    columns = round((axis.get_xlim()[1] + 0.5 - left) / steps)
    rows = round((axis.get_ylim()[1] + 0.5 - low) / elements)
    outside = (mine.index < low) | (mine.index > axis.get_ylim()[1])
    if outside.any():
        found.append(f"{name}: {outside.sum()} accesses lie outside of the element axis")
    drawn = mine.select(~outside)
    # Half of the samples are cells with an access, the others any cells.
    chosen = rng.integers(len(drawn), size=SAMPLES // 2)
    places = list(
        zip(
            ((drawn.time[chosen] - left) // steps).astype(int),
            ((drawn.index[chosen] - low) // elements).astype(int),
            strict=True,
        )
    )
    places += list(zip(rng.integers(columns, size=30), rng.integers(rows, size=30), strict=True))
    values = getattr(mine, column).astype(int)
    for x, y in places:
        start, bottom = left + x * steps, low + y * elements
        if any(start - 0.5 <= b - 0.5 <= start + steps - 0.5 for b in mine.barriers):
            continue  # a barrier's line may cover the pixel
        if _near_frame(axis, start, bottom, steps, elements):
            continue
        within = (mine.time >= start) & (mine.time < start + steps)
        within &= (mine.index >= bottom) & (mine.index < bottom + elements)
        who = np.unique(values[within])
        centre = (start + (steps - 1) / 2, bottom + (elements - 1) / 2)
        across, up = axis.transData.transform(centre)
        pixel = pixels[len(pixels) - 1 - int(up), int(across)]
        where = f"{name} at steps from {start:.0f}, elements from {bottom:.0f}"
        if not len(who):
            if np.abs(pixel - 1).max() > _CLOSE:
                found.append(f"{where}: nothing was accessed, and {pixel} is drawn")
            continue
        key = int(who[0]) if len(who) == 1 else "several"
        share, fits = _opacity(pixel, expected.get(key))
        if share < _LEAST - _CLOSE or share > 1 + _CLOSE:
            found.append(f"{where}: {within.sum()} accesses, drawn with an opacity of {share:.2f}")
        elif not fits and key in expected:
            found.append(f"{where}: by {key}, which is not the colour {pixel}")
        elif key == "several" and key not in expected:
            found.append(f"{where}: by {who}, and the legend has no colour for several")
        else:
            shades.append((int(within.sum()), share, key))
    return found + _paler(name, shades)


def _opacity(pixel, colour):
    """The opacity on white with which a colour gives the pixel, and whether it does; for an unknown
    colour, whether anything is drawn."""
    if colour is None:
        return (1.0 if np.abs(1 - pixel).max() > _CLOSE else 0.0), True
    ink = 1 - np.asarray(colour)
    share = float((1 - pixel) @ ink / (ink @ ink))
    return share, bool(np.abs(1 - share * ink - pixel).max() < _CLOSE)


def _paler(name, shades):
    """Cells with fewer accesses must not be darker."""
    for one in shades:
        for other in shades:
            if one[0] > other[0] and one[2] == other[2] and one[1] < other[1] - 2 * _CLOSE:
                return [f"{name}: a cell with {one[0]} accesses is paler than one with {other[0]}"]
    return []


def side_by_side(text, traces, seed, cache=None):
    """What is wrong in a stepper of several runs, each with a cache of that many bytes."""
    rng = np.random.default_rng(seed)
    runs = stepwise.unpacked(text)
    if [run["name"] for run in runs] != list(traces):
        return [f"stepper: the runs are {[run['name'] for run in runs]}"]
    found = []
    for run, trace in zip(runs, traces.values(), strict=True):
        found += _stepper(text, run, trace, rng)
        if cache is not None:
            found += _misses(run, trace, cache // statistics.LINE, rng)
    return found


def _stepper(text, data, trace, rng):
    scopes = np.array([info.scope for info in trace.buffers])[trace.buffer]
    mine = trace.select(scopes != "local") if (scopes != "local").any() else trace
    order = np.unique(np.stack([mine.time, mine.site]), axis=1)
    found = []
    if len(data["steps"]) != order.shape[1]:
        if f"the first {len(data['steps']):,} of {order.shape[1]:,} steps" not in text:
            found.append(f"{len(data['steps'])} of {order.shape[1]} steps, and it does not say so")
        order = order[:, : len(data["steps"])]
    arguments = list(trace.arrays)
    for grid in data["buffers"]:
        name = grid["name"]
        if name in arguments and grid["colour"] != PALETTE[arguments.index(name) % len(PALETTE)]:
            found.append(f"stepper: {name} has another's colour")
    for number in rng.integers(order.shape[1], size=SAMPLES):
        time, site = order[:, number]
        here = mine.select((mine.time == time) & (mine.site == site))
        drawn, accesses, *runs = data["steps"][number]
        elements = {
            e for at, many in zip(runs[::2], runs[1::2], strict=True) for e in range(at, at + many)
        }
        buffer, is_store, said, _ = data["sites"][drawn]
        info = trace.sites[site]
        if said != info.text or bool(is_store) != info.is_store:
            found.append(f"stepper: step {number} is {said!r}, in the trace {info.text!r}")
        elif data["buffers"][buffer]["name"] != trace.buffers[info.buffer].name:
            found.append(f"stepper: step {number} is drawn in another buffer")
        elif accesses != len(here) or elements != set(here.index.tolist()):
            found.append(f"stepper: step {number} touches {len(elements)} elements wrongly")
        values = {
            (data["loops"][loop][0], loop): value
            for loop, value in zip(data["sites"][drawn][3], data["values"][number], strict=True)
        }
        exact = {
            (loop.name, place): int(loop.value[0])
            for place, loop in enumerate(here.loops)
            if loop.value[0] >= 0
        }
        if values != exact or not _computes(said, values, here):
            found.append(f"stepper: step {number} has the loops {values}, in the trace {exact}")
    return found


def _computes(said, values, here):
    """Whether the index in the access's text gives one of its elements for these loop values; so
    where the text has no other names (those of threads and lanes), and no functions."""
    names = {}
    for (name, _), value in values.items():
        names.setdefault(name, value)
    index = said.partition("[")[2].rpartition("]")[0]
    words = set(re.findall(r"[A-Za-z_]\w*", index))
    if not words <= set(names) or not re.fullmatch(r"[\w\s+*()-]+", index):
        return True
    return eval(index, {}, names) in here.index


def _misses(data, trace, lines, rng):
    """The misses and the cache after sampled steps are those of a cache that is simulated here."""
    mine = trace.select(np.isin(trace.buffer, _numbers(trace, "global")))
    first, last = mine.address // statistics.LINE, len(data["steps"]) - 1
    moments = np.unique(trace.select(~np.isin(trace.buffer, _numbers(trace, "local"))).time)
    asked = {0, last, *rng.integers(last + 1, size=8).tolist()}
    touched = np.unique(np.stack([mine.time, first]), axis=1)  # by time, then by line
    step = np.searchsorted(moments, touched[0]).tolist()
    held, misses, at, found = OrderedDict(), 0, 0, []
    drawn, drawn_misses = set(), 0
    for now in sorted(asked):
        while at < len(step) and step[at] <= now:
            line = int(touched[1, at])
            misses += line not in held
            held[line] = None
            held.move_to_end(line)
            if len(held) > lines:
                held.popitem(last=False)
            at += 1
        while drawn_misses < len(data["misses"]) and data["misses"][drawn_misses][0] <= now:
            _, line, thrown = data["misses"][drawn_misses]
            drawn = drawn - {thrown} | {line}
            drawn_misses += 1
        if drawn_misses != misses or drawn != set(held):
            found.append(
                f"stepper: {data['name']} has {drawn_misses} misses and {len(drawn)} lines after"
                f" step {now}, and a cache of {lines} lines {misses} and {len(held)}"
            )
    return found


def _numbers(trace, scope):
    return [number for number, info in enumerate(trace.buffers) if info.scope == scope]


def _reuse(figure, trace, rng):
    """The hit rates of the curve are those of caches that are simulated here."""
    axis, rate = figure.axes
    touched = statistics.line_accesses(trace.of_scope("global"))
    bars = int(sum(bar.get_height() for bar in axis.patches))
    found = []
    if bars != len(touched.line):
        found.append(f"reuse: the bars hold {bars} of {len(touched.line)} line accesses")
    curve = rate.lines[0].get_ydata()
    for place in {0, *rng.integers(len(curve), size=2).tolist()} if len(curve) else ():
        hits = 0
        for worker in np.unique(touched.worker):
            held = OrderedDict()
            for line in touched.line[touched.worker == worker].tolist():
                hits += line in held
                held[line] = None
                held.move_to_end(line)
                if len(held) > 1 << place:
                    held.popitem(last=False)
        exact = 100 * hits / len(touched.line)
        if abs(exact - curve[place]) > 1e-6:
            found.append(f"reuse: {1 << place} lines hit {exact:.3f} %, drawn {curve[place]:.3f} %")
    return found


def _accesses(trace, axis):
    """The accesses of the site that a panel's title names; of all such, if it is cut short."""
    verb, text = axis.get_title(loc="left").split("\n")[0].split(" ", 1)
    head, _, tail = text.partition(" ... ")
    numbers = [
        number
        for number, site in enumerate(trace.sites)
        if (verb == "store") == site.is_store
        and site.text.startswith(head)
        and (site.text.endswith(tail) if tail else site.text == head)
    ]
    return trace.select(np.isin(trace.site, numbers))


def _warp(figure, trace):
    """Some warp's accesses at one time are those of the panel: each thread in its sector."""
    found = []
    for axis in figure.axes:
        mine = _accesses(trace, axis)
        # Threads are bars with room around them; sectors reach over all threads.
        bars = [p for p in axis.patches if p.get_height() < 1]
        drawn = {(round(p.get_x(), 4), int(p.get_y())) for p in bars}
        said = re.search(
            r"\n([\d,]+) sectors?(?: \((\d+) drawn\))? moved", axis.get_title(loc="left")
        )
        sectors, shown = int(said[1].replace(",", "")), int(said[2] or 0)
        for one in _instructions(mine):
            place = {s: n for n, s in enumerate(sorted(set((one.address // 32).tolist())))}
            exact = {
                (round(place[address // 32] + address % 32 / 32, 4), thread % 32)
                for address, thread in zip(one.address.tolist(), one.thread.tolist(), strict=True)
            }
            exact = {mark for mark in exact if not shown or mark[0] < shown}
            if exact == drawn and len(place) == sectors:
                break
        else:
            found.append(f"warp: no instruction is as drawn: {axis.get_title(loc='left')}")
    return found


def _instructions(mine):
    """The accesses of each warp instruction: all vector lanes of a warp at a time, and each lane
    alone, in case no instruction moves them together."""
    keys = np.unique(np.stack([mine.time, mine.worker, mine.warp]), axis=1)
    for time, worker, warp in keys.T.tolist():
        one = mine.select((mine.time == time) & (mine.worker == worker) & (mine.warp == warp))
        lanes = np.unique(one.lane)
        yield one
        yield from (one.select(one.lane == lane) for lane in lanes if len(lanes) > 1)


def _banks(figure, trace):
    """Some warp's accesses at one time are those of the panel: each thread's bank, and the turn."""
    found = []
    for axis in figure.axes:
        if not axis.images or not axis.get_title(loc="left"):
            continue
        grid = np.asarray(np.ma.filled(axis.images[0].get_array().astype(float), np.nan))
        drawn = {(int(t), int(b)): int(grid[t, b]) for t, b in np.argwhere(~np.isnan(grid))}
        mine = _accesses(trace, axis)
        if not any(_served(one) == drawn for one in _instructions(mine)):
            found.append(f"banks: no instruction is as drawn: {axis.get_title(loc='left')}")
    return found


def _served(one):
    """(thread, bank) -> turn: a bank serves one word at a time, and a whole warp only 4 bytes of
    each thread at once: halves of it at 8 bytes, quarters at 16."""
    threads = len(set(one.thread.tolist()))
    at_once = 32 // max(1, -(-int(one.itemsize.sum() // threads) // 4))
    queues, turns = {}, {}
    for address, thread in zip(one.address.tolist(), (one.thread % 32).tolist(), strict=True):
        word = address // 4
        queue = queues.setdefault((thread // at_once, word % 32), [])
        if word not in queue:
            queue.append(word)
        turns[thread, word % 32] = queue.index(word) + 1
    return turns
