"""The site is built without a fault, has every page, and its checks find what is planted."""

import contextlib
import importlib.util
import io
import json
import re

import pytest
from markdown_it import MarkdownIt

pytest.importorskip("tvm", reason="the site has pages of the compiler, which needs the [tvm] extra")

from docs import reference
from docs.course import notebooks
from docs.website import __main__ as website
from docs.website import atlas, check, compiler, drawing, figures, home
from docs.website.models import examples
from docs.website.normal import normal
from kernel_lab import registry
from kernel_lab.diagrams import stepwise
from needle.trace import trace
from needle_tvm.frontend.lowering import lowered
from needle_tvm.lower import build, pipeline
from needle_tvm.lower.variant import Variant
from tests import ROOT

HAS_SITE = all(importlib.util.find_spec(name) for name in ("mkdocs", "material"))
needs_site = pytest.mark.skipif(not HAS_SITE, reason="needs the [site] extra")
HAS_GUIDE = all(importlib.util.find_spec(name) for name in ("nbformat", "nbclient", "ipykernel"))
needs_guide = pytest.mark.skipif(not HAS_GUIDE, reason="needs the [guide] extra")
DOCUMENTS = sorted([*ROOT.glob("docs/**/*.md"), *ROOT.glob("*.md")])


def page(body):
    return f"<!doctype html><html><head><title>t</title></head><body>{body}</body></html>"


@pytest.mark.parametrize(
    "body, fault",
    [
        ('<a href="none.html">x</a>', "none.html leads nowhere"),
        ('<a href="../../etc/passwd">x</a>', "../../etc/passwd leads nowhere"),
        ('<a href="#nothing">x</a>', "#nothing leads to an anchor that the page does not have"),
        (
            '<a href="other.html#no">x</a>',
            "other.html#no leads to an anchor that the page does not have",
        ),
        ('<img src="none.png">', "fetches none.png, which does not exist"),
        (
            '<script src="https://example.org/a.js"></script>',
            "fetches https://example.org/a.js from another machine",
        ),
        (
            '<link rel="stylesheet" href="//example.org/a.css">',
            "fetches //example.org/a.css from another machine",
        ),
        (
            "<style>@import 'https://example.org/b.css';</style>",
            "fetches https://example.org/b.css from another machine",
        ),
        ('<p style="background:url(none.png)">', "fetches none.png, which does not exist"),
    ],
)
def test_faults_are_found(body, fault, tmp_path):
    (tmp_path / "other.html").write_text(page('<h1 id="here">x</h1>'))
    good = (
        '<a href="other.html#here">x</a><a href="https://example.org">y</a><a href="#a" id="a"></a>'
    )
    (tmp_path / "index.html").write_text(page(good))
    assert check.faults(tmp_path) == []
    (tmp_path / "index.html").write_text(page(good + body))
    assert check.faults(tmp_path) == [f"index.html: {fault}"]


def test_a_style_sheet_that_fetches_is_found(tmp_path):
    (tmp_path / "a.css").write_text("p { background: url('https://example.org/x.png') }")
    assert check.faults(tmp_path) == [
        "a.css: fetches https://example.org/x.png from another machine"
    ]


@needs_site
@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_pages_have_what_github_shows(path):
    """As many list items, tables, blocks of code and headings as CommonMark makes of the text."""
    markdown = pytest.importorskip("markdown")
    text = path.read_text()
    extensions = ["tables", "md_in_html", "attr_list", "pymdownx.superfences"]
    ours = markdown.markdown(normal(text), extensions=extensions)
    theirs = MarkdownIt().enable("table").render(text)
    for tag in ("li", "ul", "ol", "table", "tr", "pre", "h2", "h3"):
        counts = [len(re.findall(rf"<{tag}[ >]", html)) for html in (ours, theirs)]
        assert counts[0] == counts[1], tag


def test_the_first_page_has_the_code_and_figures_of_other_pages():
    """And nothing of a page stands for a part that is missing."""
    text, readme = home.text(), (ROOT / "README.md").read_text()
    assert "<!--" not in text
    (code,) = re.findall(r"```python\n.*?```", text, re.DOTALL)
    assert code in readme
    rows = re.findall(r"^\|.*\|$", text, re.MULTILINE)
    assert len(rows) > 5 and "\n".join(rows) in readme
    lab = (ROOT / "docs/results/2026-11-21-lab-cpu.md").read_text()
    lab = lab.partition("## Matrix product, 512")[2].partition("\n## ")[0]
    bars = re.findall(r'scope="row">(?:<code>)?([\w, ]+).*--share: ([\d.]+)"></i> ([\d.]+)<', text)
    assert {"naive", "register_tile", "NumPy", "PyTorch"} <= {name for name, *_ in bars}
    for name, share, speed in bars:
        found = re.search(
            rf"^\| {name.strip()} \|.* \| {speed} \|.* \| ([\d.]+) \|$", lab, re.MULTILINE
        )
        assert found and float(found[1]) / 100 == pytest.approx(float(share)), name
    with pytest.raises(ValueError, match="no such code or table"):
        home._part("README table", "Nothing")


def test_the_steps_shown_are_those_of_the_compiler():
    """The last step of a model is the module that `compile` builds."""
    shown = {each.name: each for each in examples()}
    for name in ("mlp", "rounded", "lstm"):
        each = shown[name]
        target = compiler.target_for(each.processor)
        variant = Variant("tuned", precision=each.precision)
        graph = trace(each.model, *each.inputs)
        module = build.schedule(lowered(graph, target, variant), target, "tuned")
        text = compiler.tvmscript(module)
        assert compiler.steps(each)[-1].after == text


def test_drawings_have_the_calls_that_depend_on_an_input():
    """Batch norm's work on weights alone is none of them; its weights are with their readers."""
    way = compiler.steps(next(each for each in examples() if each.name == "mlp"))
    before, after = (
        drawing.picture(way[0].before, "before"),
        drawing.picture(way[-2].after, "after"),
    )
    names = ["matmul", "add", "multiply", "add", "maximum", "matmul", "add"]
    assert names_of(before) == names
    assert names_of(after) == ["dense, add, maximum", "dense, add"]
    assert "modules_1_running_var" in before and "rsqrt" not in before


def names_of(picture):
    """The names of a picture's boxes but for the first and the last, an input and the result."""
    return re.findall(r'font-weight="bold"[^>]*>([^<]+)<', picture)[2:-1]


def test_pictures_stand_after_the_blocks_that_draw_them(tmp_path):
    v4 = pytest.importorskip("nbformat.v4", reason="needs the [guide] extra")
    lesson = tmp_path / "99-drawing.md"
    lesson.write_text("# t\n\n```python\ndraw()\n```\n\n```sh\nls\n```\n\nEnd.\n")
    made = notebooks.notebook(lesson)
    svg = '<?xml version="1.0"?>\n<svg height="9pt" viewBox="0 0 72 36"><path/></svg>'
    picture = {"image/svg+xml": svg, "image/png": "", "text/plain": "a.svg"}
    stepper = '<figure class="stepper">\n</figure>'
    steps = {"text/html": f"{stepper}\n<script></script>", "text/plain": "steps.html"}
    printed = v4.new_output("stream", text="x")
    said = '<div class="shown"><p>right<br>1.2 ms at M=64, 3 times as fast as tile</p>\n</div>'
    judged = {"text/html": said, "text/plain": "right"}
    shown = [v4.new_output("display_data", data) for data in (picture, steps, judged)]
    made.cells[1].outputs = [printed, *shown]
    text = figures.drawn(lesson, made)
    before, drawn, after = re.split(r"\n(<figure class=\"drawn\">.*?</figure>)\n", text)
    assert before.endswith("draw()\n```\n") and 'aria-label="a: accesses"' in drawn
    assert "<path/></svg></figure>" in drawn and "9pt" not in drawn and "xml version" not in drawn
    stepped = stepper.replace("<figure", "<figure data-search-exclude")
    verdict = (
        f'<details data-search-exclude class="shown">{figures._SHOWN}'
        '<div class="shown"><p>right</p> </div></details>'
    )
    assert after == f"\n{stepped}\n\n{verdict}\n\n```sh\nls\n```\n\nEnd.\n\n\n{stepwise.script()}"


def test_a_picture_that_the_text_shows_is_shown_once(tmp_path):
    v4 = pytest.importorskip("nbformat.v4", reason="needs the [guide] extra")
    lesson = tmp_path / "lesson.md"
    lesson.write_text("```python\nsave()\n```\n\n![Two rows](pictures/rows.svg)\n")
    (tmp_path / "pictures").mkdir()
    scheme = "<style>svg { background: #ffffff }</style>"
    (tmp_path / "pictures/rows.svg").write_text(f'<svg viewBox="0 0 9 9">\n{scheme}<path/></svg>')
    made = notebooks.notebook(lesson)
    for name, count in (("rows.svg", 1), ("other.svg", 2)):
        svg = '<svg viewBox="0 0 72 36"><circle/></svg>'
        saved = {"image/svg+xml": svg, "text/plain": name}
        made.cells[0].outputs = [v4.new_output("display_data", saved)]
        text = figures.drawn(lesson, made)
        assert text.count("<svg") == count and ("<circle/>" in text) == (count == 2)
        assert 'aria-label="Two rows"' in text and "<style>" not in text and "![" not in text


def assert_every_pass_is_shown(text):
    listed = pipeline.PIPELINES["llvm"]["tuned"]
    names = {compiler.name_of(apply) for apply in (*listed.graph, *listed.schedule)}
    sections = dict(re.findall(r"^## (\w+) .*?\n(.*?)(?=^## |\Z)", text, re.M | re.S))
    assert sections.keys() == names
    unseen = {name for name, section in sections.items() if "```diff" not in section}
    assert unseen <= {"sizes_in_shapes"}
    for name, section in sections.items():
        said = re.search(r"in the list: .*?\n\n(.+?)\n", section)
        assert said and len(said[1]) > 20, name


@needs_site
@needs_guide
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # MkDocs's own
def test_the_site_is_built(tmp_path, monkeypatch):
    """With the outputs of one lesson and the rungs of one ladder: test_course.py and test_atlas.py
    have the others."""
    executed, write = notebooks.executed, compiler.write
    passes = []

    def one_executed(path):
        return executed(path) if path.stem == "03-cache" else notebooks.notebook(path)

    def kept(folder):
        write(folder)
        passes.append((folder / "passes.md").read_text())

    ladder = registry.ladder("vector_add", "cpu")
    rungs = {ROOT / atlas.page_of(ladder): atlas.text("vector_add", "cpu")}
    monkeypatch.setattr(atlas, "texts", lambda: rungs)
    monkeypatch.setattr(notebooks, "executed", one_executed)
    monkeypatch.setattr(compiler, "write", kept)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        website.main([str(tmp_path / "site"), "--no-lab"])
    assert re.search(r"index\.html: \d+ pages in \d+ s\n$", printed.getvalue())
    assert_every_pass_is_shown(passes[0])
    site = tmp_path / "site"
    assert check.faults(site) == []
    stems = [path.stem for path in notebooks.pages()]
    for name in [
        "index.html",
        "course/index.html",
        *(f"course/{stem}.html" for stem in (*stems, "glossary", "faq")),
        *(f"course/notebooks/{stem}.ipynb" for stem in stems),
        *(f"atlas/{name}-{device}.html" for name, device in registry.LADDERS),
        *(f"reference/{reference.page_name(each)[:-3]}.html" for each in reference.PAGES),
        "compiler/passes.html",
        "contributing.html",
        *(f"{page}.html" for page in ("overview", "compatibility", "changelog", "security")),
    ]:
        assert (site / name).is_file(), name
    lesson = (site / "course/03-cache.html").read_text()
    (drawn,) = re.findall(r'<figure class="drawn"><svg role="img" aria-label="([^"]+)"', lesson)
    assert drawn.startswith("Three orders of the product")
    (stepper,) = re.findall(r'<figure [^>]*class="stepper".*?</figure>', lesson, re.DOTALL)
    runs = stepwise.unpacked(stepper)
    assert [run["name"] for run in runs] == ["naive", "reorder", "blocks_of_16"]
    assert stepper.count('<svg class="still"') == 3
    assert [len(run["misses"]) for run in runs] == [8272, 592, 224]  # as the lesson says
    assert lesson.count("DecompressionStream") == 1
    (judged,) = re.findall(r'<details [^>]*class="shown">.*?</details>', lesson, re.DOTALL)
    assert "tile: right at" in judged and "times as fast" not in judged
    anchors = re.findall(r' id="([^"]+)"', lesson)
    assert len(anchors) == len(set(anchors))  # a picture's would lead links astray
    shown = (site / "atlas/vector_add-cpu.html").read_text()
    headings = re.findall(r'<h3 id="([^"]+)">', shown)
    assert [name.partition("-which")[0] for name in headings] == [r.name for r in ladder.rungs]
    anchors = re.findall(r' id="([^"]+)"', shown)
    assert len(anchors) == len(set(anchors)) and shown.count('class="drawn"') == len(ladder.rungs)
    index = json.loads((site / "search/search_index.json").read_text())
    assert any("register pressure" in entry["text"].lower() for entry in index["docs"])
    texts = " ".join(entry["text"] for entry in index["docs"])
    assert "DecompressionStream" not in texts and "arrows: a step" not in texts
    with pytest.raises(SystemExit, match="was not touched"):
        website.main([str(ROOT / "docs")])
    assert (ROOT / "docs/course").is_dir()


@needs_site
@pytest.mark.slow
def test_a_broken_link_ends_the_build(tmp_path):
    """In a copy of the pages, whose folder is the root there."""
    from mkdocs.commands.build import build as mkdocs_build
    from mkdocs.config import load_config
    from mkdocs.exceptions import Abort

    for number, link in enumerate(["[x](none.md)", "[x](index.md#nothing)"]):
        source = tmp_path / str(number)
        source.mkdir()
        (source / "index.md").write_text(f"# t\n\n{link}\n")
        for name in ("logo.svg", "icon.svg", "site.css", "iframe-worker.js"):
            (source / name).write_text((ROOT / "docs/website" / name).read_text())
        config = load_config(
            str(ROOT / "docs/website/mkdocs.yml"),
            docs_dir=str(source),
            site_dir=str(tmp_path / f"site{number}"),
            strict=True,
        )
        with pytest.raises(Abort):
            mkdocs_build(config)


@pytest.mark.slow
def test_a_report_of_the_lab_is_part_of_the_site(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    from docs.website import lab
    from kernel_lab import report

    monkeypatch.setattr(report, "PICTURED", report.PICTURED)  # put back afterwards

    for name, device in registry.LADDERS:
        assert f'href="{name}-{device}/index.html"' in lab.index()
    lab.write_report("vector_add", "cpu", tmp_path / "lab/vector_add-cpu")
    for place in ("index.html", "lab/index.html"):
        (tmp_path / place).write_text(page(""))
    assert check.faults(tmp_path) == []
    text = (tmp_path / "lab/vector_add-cpu/index.html").read_text()
    assert "../../index.html" in text and "<svg" in text
