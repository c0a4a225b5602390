"""The report is self-contained, agrees with the result, and renders in a browser."""

import re
import shutil
import subprocess
from html.parser import HTMLParser

import numpy as np
import pytest

pytest.importorskip("tvm")
pytest.importorskip("matplotlib")

from kernel_lab import build, diagrams, ir_views, registry, report, report_rungs
from kernel_lab.diagrams import charts, stepwise
from kernel_lab.diagrams.space_time import ticks
from kernel_lab.errors import LabError, LabUsageError
from kernel_lab.factors import work
from kernel_lab.report_steps import side_by_side
from kernel_lab.results import (
    Check,
    LabResult,
    Published,
    Roofline,
    RungResult,
    SweepPoint,
)
from kernel_lab.rung import Ladder
from kernel_lab.scaled import scaled_trace, smaller
from kernel_lab.sizes import drawn_size
from kernel_lab.trace import TraceTooLarge, statistics, trace
from kernel_lab.workload import Case
from needle_runtime.process.timing import Spread


def entry_of(rung, case, seconds, **other):
    """A rung's result with made-up times."""
    return RungResult(
        name=rung.name,
        kind=rung.kind,
        reason=rung.reason,
        after=rung.after,
        expected=rung.expected,
        check=Check(1e-7, 1e-5),
        seconds=seconds and Spread(seconds, 0.9 * seconds, 1.2 * seconds),
        gigaflops=seconds and 1e-9 / seconds,
        roofline=seconds and 0.5,
        source=rung.source,
        module=rung.module(case),
        **other,
    )


def result_of(ladder, size, times, **other):
    case = Case(size)
    rungs = [entry_of(ladder[name], case, seconds) for name, seconds in times.items()]
    return LabResult(
        workload=ladder.workload.name,
        title="sum of <two> vectors",
        device=ladder.device,
        size=dict(size),
        flops=ladder.workload.flops(size),
        bytes=ladder.workload.bytes(size),
        target=build.description(ladder.device),
        machine={"processor": "a processor", "threads": 2},
        date="2026-11-20T12:00:00+00:00",
        rungs=rungs,
        **other,
    )


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A CPU result with two rungs, a refused one, peers and a sweep; and its page."""
    ladder = registry.ladder("vector_add", "cpu")
    result = result_of(
        ladder,
        {"N": 4096},
        {"naive": 4e-6, "vectorise": 1.5e-6},
        roofline=Roofline(100.0, 40.0, 1e-6, "memory"),
        peers_missing={"torch": "PyTorch is not installed"},
        published=[Published("004", "Table I", 30.4, "Colab")],
        sweep=[
            SweepPoint(
                {"N": n}, n, {"naive": n * 1e-9, "vectorise": None if n < 512 else n * 5e-10}
            )
            for n in (256, 512, 1024)
        ],
        sweep_axis="N",
    )
    result.rungs[1].speedup_previous = Spread(2.67, 2.5, 2.8)
    result.rungs[1].speedup_naive = Spread(2.67, 2.5, 2.8)
    result.rungs[1].surprising = True
    result.rungs[1].explained = "The numbers of this test are made up."
    result.rungs.append(RungResult("parallel", "schedule", "why", refused="N=4096 is too small"))
    result.peers.append(
        RungResult("numpy", "peer", "a + b", seconds=Spread(3e-6, 3e-6, 3e-6), gigaflops=1.37)
    )
    directory = tmp_path_factory.mktemp("report")
    page = report.write(result, directory)
    return result, page


class Outline(HTMLParser):
    """Checks that tags close in order, and collects the text and the URLs that would be fetched."""

    VOID = frozenset({"meta", "link", "img", "br", "hr", "col", "input"})

    def __init__(self):
        super().__init__()
        self.open, self.text, self.fetched, self.tags = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href") and not re.match(r"#|data:", value or ""):
                self.fetched.append(value)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def outline(page):
    parsed = Outline()
    parsed.feed(page.read_text(encoding="utf-8"))
    parsed.close()
    return parsed


def test_the_page_is_whole_and_needs_nothing_else(written):
    found = outline(written[1])
    assert found.open == [] and found.fetched == []
    # An animated view of both rungs side by side and one of each, and the script for them.
    assert (found.tags.count("canvas"), found.tags.count("script")) == (2 + 1 + 1, 3 + 1)
    assert not re.search(r"url\(\s*['\"]?(?!data:|#)", written[1].read_text())
    assert found.tags.count("svg") >= 3 + 2 * 2  # charts, and diagrams of two rungs


def test_the_page_says_what_the_result_says(written):
    text = " ".join("".join(outline(written[1]).text).split())
    for said in (
        "sum of <two> vectors, CPU",
        "N=4096 · a processor · 2 threads",
        "best hand-written rung: vectorise",
        "as fast as numpy",
        "refused: N=4096 is too small",
        "PyTorch is not installed",
        "Measured: 2.67 times as fast as naive.",
        "The numbers of this test are made up.",
        "Run one loop on one thread: two loads, an addition, a store.",
        "what changed since naive",
        "hot loop: ",
        "Table I",
        "30.4 ms",
        "scaled down: traced at N=64 (the run has N=4096)",
    ):
        assert said in text, said


def test_pictures_lie_beside_the_page(written):
    names = {path.name for path in (written[1].parent / "pictures").iterdir()}
    for stem in ("time", "roofline", "sweep", "naive-space-time", "vectorise-reuse"):
        assert {f"{stem}.png", f"{stem}.svg"} <= names


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium")
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_browser_shows_the_page_in_light_and_dark(written, tmp_path, theme):
    from matplotlib.image import imread

    shot = tmp_path / "page.png"
    flags = "--no-sandbox --disable-gpu --disable-quic --no-first-run --hide-scrollbars"
    flags += " --disable-background-networking --disable-component-update --disable-sync"
    scheme = {"light": "1", "dark": "0"}[theme]
    command = ["chromium", "--headless", *flags.split(), f"--user-data-dir={tmp_path}/profile"]
    command += [f"--blink-settings=preferredColorScheme={scheme}", "--window-size=1000,900"]
    command += [f"--screenshot={shot}", written[1].as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=90)
    grey = imread(shot)[..., :3].mean(axis=2)
    paper = np.median(grey)
    assert paper > 0.9 if theme == "light" else paper < 0.2
    # Every band of the window has dark pixels, so the table and the charts are visible.
    for band in np.array_split(grey, 6):
        assert (np.abs(band - paper) > 0.4).mean() > 0.002


def rendered(page, folder):
    """The page's HTML after its scripts have run, in Chromium."""
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run"
    flags += " --virtual-time-budget=5000"  # for the steps, which are unpacked in the background
    flags += " --disable-background-networking --disable-component-update --disable-sync"
    command = ["chromium", *flags.split(), f"--user-data-dir={folder}/profile", "--dump-dom"]
    done = subprocess.run(
        [*command, page.as_uri()], check=True, capture_output=True, timeout=90, text=True
    )
    return done.stdout


# Presses keys in the first stepper of a page, and writes down the steps that it says it is at.
PRESSED = """<pre id="steps"></pre><script>
const waiting = setInterval(() => {
  const figure = document.querySelector("figure.stepper.live");
  if (!figure) return;
  clearInterval(waiting);
  const found = () => figure.querySelector("output").textContent.match(/step ([\\d,]+) of/)[1];
  const steps = [found()];
  for (const key of ["ArrowRight", "ArrowLeft", "End", "ArrowLeft", "Home", "End"]) {
    figure.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
    steps.push(found());
  }
  document.getElementById("steps").textContent = steps.join(" ");
}, 20);
</script>"""


def outputs_of(page):
    """The lines that each live stepper of a page says of its step."""
    found = re.findall(r"<output[^>]*>(.*?)</output>", page)
    return [
        [re.sub("<.*?>", "", line).strip() for line in re.findall(r"<span>(.*?)</span>", output)]
        for output in found
    ]


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium")
def test_the_stepwise_view_runs_in_a_browser(written, tmp_path):
    outputs = outputs_of(rendered(written[1], tmp_path))[-2:]
    lanes = build.processor(build.make_target("cpu")).lanes
    assert outputs == [
        ["step 1 of 192", "load a[i]", "i=0/64"],
        [
            f"step 1 of {3 * 64 // lanes}",
            f"load a[i_0 * {lanes} + i_1], {lanes} accesses",
            f"i_0=0/{64 // lanes}",
        ],
    ]


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium")
def test_a_browser_counts_the_misses_of_the_model(tmp_path):
    ladder = registry.ladder("gemm", "cpu")
    rungs = [ladder[name] for name in ("naive", "reorder", "register_tile")]
    figure = side_by_side(ladder.workload, rungs, Case({"M": 64, "N": 64, "K": 64}))
    size = {"M": 16, "N": 64, "K": 8}
    assert "traced at M=16, N=64, K=8" in figure
    page = tmp_path / "page.html"
    page.write_text(diagrams.page(figure).replace("</body>", f"{PRESSED}</body>"))
    text = rendered(page, tmp_path)
    outputs = outputs_of(text)
    steps = [int(n.replace(",", "")) for n in re.search(r'id="steps">(.*?)<', text)[1].split()]
    last = len(stepwise.unpacked(figure)[0]["steps"])
    assert steps == [1, 2, 1, last, last - 1, 1, last]
    runs = stepwise.unpacked(figure)
    for rung, output, run in zip(rungs, outputs, runs, strict=True):
        inputs = ladder.workload.inputs(size)
        found = trace(rung.module(Case(size)), inputs, cores=1, ignore=("local",))
        misses = statistics.cache(found, run["cache"] * 64).misses
        assert output[0] == f"{misses:,} misses", (rung.name, output)
        values = zip(run["sites"][run["steps"][-1][0]][3], run["values"][-1], strict=True)
        loops = [f"{run['loops'][n][0]}={value}/{run['loops'][n][1]}" for n, value in values]
        assert output[-1].split() == loops and len(loops) >= 2, output


def test_a_gpu_rung_is_drawn_and_compiled_without_a_gpu(tmp_path, monkeypatch):
    workload = registry.workload("vector_add")
    ladder = Ladder(workload, "cuda")

    @ladder.rung(kind="naive", expected=(1, 1))
    def naive(sch, case):
        """A thread for each element."""
        block, thread = sch.split(sch.get_loops(sch.get_sblock("c"))[0], [None, 128])
        sch.bind(block, "blockIdx.x")
        sch.bind(thread, "threadIdx.x")

    monkeypatch.setitem(registry.LADDERS, ("vector_add", "cuda"), ladder)
    result = result_of(
        ladder, {"N": 1 << 10}, {"naive": None}, timed=False, untimed_reason="there is no GPU"
    )
    text = " ".join("".join(outline(report.write(result, tmp_path)).text).split())
    assert "Not timed: there is no GPU" in text and "not timed" in text
    assert (
        "Found no idle lanes, uncoalesced accesses, bank conflicts or loads of unset memory."
        in text
    )
    if shutil.which("nvcc"):
        assert "ld.global" in text and "__global__" in text
    else:
        assert "no nvcc was found" in text
    names = {path.name for path in (tmp_path / "pictures").iterdir()}
    assert "naive-warp.svg" in names and "time.svg" not in names


def test_a_compiler_that_fails_costs_its_part_of_the_page_only(monkeypatch):
    ladder = registry.ladder("vector_add", "cuda")
    entry = entry_of(ladder["threads"], Case({"N": 512}), None)

    def hangs(command):
        raise LabError("nvcc took longer than 600 s")

    monkeypatch.setattr(ir_views, "_run", hangs)
    monkeypatch.setattr(ir_views.nvcc, "require", lambda: "nvcc")
    text = report_rungs.code(entry, "cuda", build.make_target("cuda", "sm_75"))
    assert "nvcc took longer than 600 s" in text


def test_a_page_that_is_not_the_labs_is_left_alone(tmp_path):
    page = tmp_path / "index.html"
    page.write_text("<p>precious</p>")
    with pytest.raises(LabUsageError, match="is not a report of the lab"):
        report.check_place(tmp_path)
    assert page.read_text() == "<p>precious</p>"


def drawn(name, device, rung, size=None):
    ladder = registry.ladder(name, device)
    full = ladder.workload.size(device, size)
    return drawn_size(ladder.workload, ladder[rung], Case(full))


def test_a_picture_holds_two_whole_tiles_along_each_axis():
    assert drawn("gemm", "cpu", "naive") == {"M": 16, "N": 16, "K": 8}
    # Blocks of 32 x 32 with k in steps of 4; tiles of 8 x 32; 32 such tiles in a row of panels.
    assert drawn("gemm", "cpu", "tile") == {"M": 64, "N": 64, "K": 8}
    assert drawn("gemm", "cpu", "register_tile") == {"M": 16, "N": 64, "K": 8}
    assert drawn("gemm", "cpu", "cache_block")["M"] >= 256
    # Blocks of 64 x 64 results, strips of 8.
    assert drawn("gemm", "cuda", "register_tile") == {"M": 128, "N": 128, "K": 16}


def test_a_picture_of_a_convolution_has_an_image_larger_than_its_kernel():
    for device in ("cpu", "cuda"):
        for rung in registry.ladder("depthwise", device).rungs:
            size = drawn("depthwise", device, rung.name)
            assert size["H"] >= 2 * size["K"] and size["W"] >= 2 * size["K"], (rung.name, size)


def test_no_dimension_is_drawn_larger_than_the_run():
    assert drawn("gemm", "cpu", "naive", {"M": 3, "N": 5, "K": 2}) == {"M": 3, "N": 5, "K": 2}
    assert drawn("gemm", "cpu", "tile", {"M": 40, "N": 512, "K": 2})["M"] == 40


def test_a_trace_is_scaled_down_until_it_can_be_drawn():
    ladder = registry.ladder("gemm", "cpu")
    case = Case({"M": 512, "N": 256, "K": 300})
    found = scaled_trace(ladder.workload, ladder["tile"], case, limit=50_000)
    assert len(found.trace) <= 50_000 and found.size["M"] < 64
    assert found.error < 1e-6
    assert found.note.startswith("scaled down: traced at M=")
    assert found.note.endswith("(the run has M=512, N=256, K=300)")
    with pytest.raises(TraceTooLarge, match="rung 'naive' has no size of at most 10"):
        scaled_trace(ladder.workload, ladder["naive"], case, limit=10)


def test_the_largest_dimension_is_halved_first():
    sizes = smaller({"M": 64, "K": 7, "mode": "full"}, lambda size: None)
    assert [size["M"] for size in sizes] == [64, 32, 16, 8, 4]
    assert all(size["K"] == 7 and size["mode"] == "full" for size in sizes)


def test_a_dimension_the_rung_needs_is_kept():
    def claims(size):
        return None if size["M"] % 64 == 0 else "M is not a multiple of 64"

    sizes = smaller({"M": 128, "K": 16}, claims)
    assert sizes[:4] == [
        {"M": 128, "K": 16},
        {"M": 64, "K": 16},
        {"M": 64, "K": 8},
        {"M": 64, "K": 4},
    ]
    assert sizes[4] == {"M": 32, "K": 4}  # no smaller size is claimed: halve the largest extent


def test_charts_show_the_figures(written):
    result = written[0]
    dots = [line for line in charts.time_chart(result).axes[0].lines if line.get_marker() == "o"]
    assert [dot.get_xdata()[0] for dot in dots] == [4e-6, 1.5e-6, 3e-6]
    lines = charts.sweep_chart(result).axes[0].lines
    assert [line.get_xdata().tolist() for line in lines] == [[256, 512, 1024], [512, 1024]]
    np.testing.assert_allclose(lines[0].get_ydata(), 1.0)
    roof = charts.roofline_chart(result).axes[0].lines[0].get_ydata()
    assert roof.max() == 100.0


def test_the_roofline_stands_at_the_bytes_of_the_run_at_each_level():
    ladder = registry.ladder("gemm", "cpu")
    result = result_of(ladder, {"M": 64, "N": 64, "K": 8}, {"naive": 4e-6, "register_tile": 1e-6})
    result.roofline = Roofline(100.0, 40.0, 1e-6, "memory", {1 << 14: 300.0})
    found = report._traffic(result)
    # Naive: a multiply-add reads A, B and C and writes C, and each C is written once more.
    terms = 64 * 64 * 8
    assert found["naive"].accessed == 2 * terms / (4 * (4 * terms + 64 * 64))
    assert found["register_tile"].accessed > found["naive"].accessed
    axis = charts.roofline_chart(result, found).axes[0]
    marks = [line.get_xdata()[0] for line in axis.lines if line.get_marker() in charts.LEVELS]
    expected = [x for one in found.values() for x in (one.accessed, *one.missed)]
    assert marks[: len(expected)] == expected
    labels = [text for text in axis.texts if text.get_text().startswith(("naive", "register"))]
    assert all(text.xyann[0] > 1 for text in labels)  # outside of the axes: no line crosses them
    result.device = "cuda"
    assert report._traffic(result) == {}  # the caches are this processor's


def test_ticks_stand_on_rows():
    assert list(ticks(0, 255, 16)) == [0, 64, 128, 192]  # rows of 16
    assert list(ticks(0, 47, 12)) == [0, 12, 24, 36]
    assert list(ticks(3, 11, 16)) == [4, 6, 8, 10]  # less than a row
    for first, last, row in [(0, 0, 1), (5, 1000, 1), (7, 100_000, 48), (64, 4095, 64)]:
        found = ticks(first, last, row)
        assert 1 <= len(found) <= 6 and first <= found[0] and found[-1] <= last
        assert all(tick % row == 0 for tick in found)


def test_work_has_a_unit():
    assert [work(n) for n in (2_147_483_648, 508_800, 64)] == ["2.15 GFLOP", "509 kFLOP", "64 FLOP"]


def test_rough_figures_are_called_rough_and_none_is_red(tmp_path):
    ladder = registry.ladder("vector_add", "cpu")
    result = result_of(ladder, {"N": 1 << 10}, {"naive": 4e-6, "vectorise": 1e-6})
    result.rungs[1].surprising = True
    result.rungs[1].speedup_naive = result.rungs[1].speedup_previous = Spread(4.0, 3.9, 4.1)
    sure = report._table(result) + report._tiles(result)
    assert 'class="bad"' in sure and "about" not in sure
    result.load = 1.0
    rough = report._table(result) + report._tiles(result)
    assert 'class="bad"' not in rough and "about 4.00x" in rough
    assert "Rough figures" in report._subtitle(result)


def test_labels_that_would_overlap_are_moved_apart():
    places = charts.spread_out(np.array([1.0, 0.99, 5.0, 1.01]), gap=0.5)
    assert (np.diff(np.sort(places)) >= 0.5 - 1e-6).all()
    assert np.argsort(places).tolist() == [1, 0, 3, 2]


def test_what_was_not_measured_has_no_chart(written):
    bare = result_of(registry.ladder("vector_add", "cpu"), {"N": 64}, {"naive": None})
    for chart in (charts.time_chart, charts.roofline_chart, charts.sweep_chart):
        with pytest.raises(LabUsageError, match="chart: "):
            chart(bare)
