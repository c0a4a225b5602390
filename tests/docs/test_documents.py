"""The code in README, the recipes and other pages runs, and what they name exists."""

import functools
import importlib.util
import os
import re
import shlex
import subprocess
import sys

import pytest

import needle as ndl
import needle_tvm
from tests import ROOT
from tests.docs.blocks import check_fences, run_page

RECIPES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/contributing/*.md"))
DOCUMENTS = [
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/**/*.md", "src/*.md", "gallery/**/*.md", "runtime/*.md")
    for path in sorted(ROOT.glob(pattern))
]
# Pages with blocks that run in order, and comments for what they print.
PRINTED = ("jit", "sizes", "loops", "pytorch", "deployment", "primitives", "published-figures")


def blocks(name, language):
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        *RECIPES,
        "docs/layers.md",
        "docs/onnx.md",
        "docs/several-processes.md",
        pytest.param("docs/coming-from-pytorch.md", marks=pytest.mark.slow),
        "docs/coming-from-the-course.md",
    ],
)
def test_python_blocks_run(name, tmp_path):
    if name == "docs/onnx.md":
        pytest.importorskip("onnx")
    if name == "docs/several-processes.md":
        pytest.importorskip("mpi4py")
    run("\n".join(blocks(name, "python")), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", PRINTED)
def test_the_blocks_of_a_page_print_what_it_says(name, tmp_path, monkeypatch):
    _, missing = run_page(ROOT / "docs" / f"{name}.md", tmp_path, monkeypatch)
    if missing:
        pytest.skip(f"blocks left out: no {', '.join(sorted(missing))}")


@pytest.mark.parametrize("name", PRINTED)
def test_fences_are_code_that_runs_or_say_what_they_are(name):
    check_fences(ROOT / "docs" / f"{name}.md")


def run(code, tmp_path, seconds=240):
    script = tmp_path / "script.py"  # a file, so that inspect finds the source of its classes
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=tmp_path,
        env={**os.environ, "NEEDLE_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stderr


def test_the_demo_is_as_short_as_it_says():
    demo, *_ = blocks("README.md", "python")
    statements = [
        line for line in demo.splitlines() if line and not line.startswith(("import", "from"))
    ]
    assert len(statements) <= 10


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "docs/commands.md"])
def test_commands_exist(name):
    makefile = (ROOT / "Makefile").read_text()
    for line in "\n".join(blocks(name, "sh")).splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["make"]:
            for target in (word for word in words[1:] if "=" not in word):
                assert re.search(rf"^([\w-]+ )*{re.escape(target)}\b.*:", makefile, re.MULTILINE), (
                    line
                )
        if words[:1] == ["python"]:
            assert (ROOT / words[1]).is_file() or words[1].startswith("-"), line


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_somewhere(name):
    path = ROOT / name
    for link in links(path):
        assert leads_somewhere(link, path), link


def links(path):
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    return re.findall(r"\]\(([^)\s]+)\)", text)


def leads_somewhere(link, path):
    """Whether a file that a page links to exists, and has the heading that the link names."""
    if link.startswith("https://"):
        return True
    name, _, anchor = link.partition("#")
    target = path.parent / name if name else path
    return target.exists() and (not anchor or anchor in anchors(target))


@functools.cache
def anchors(path):
    """The anchors that GitHub makes of a page's headings."""
    text = re.sub(r"^ *```.*?^ *```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    seen, found = {}, set()
    for heading in re.findall(r"^#+ (.*?)\s*$", text, re.MULTILINE):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        name = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        number = seen[name] = seen.get(name, -1) + 1
        found.add(f"{name}-{number}" if number else name)
    return found


def test_a_link_to_a_heading_that_a_page_does_not_have_is_found(tmp_path):
    page, other = tmp_path / "page.md", tmp_path / "other.md"
    page.write_text("# Run a page\n\n```sh\n# no heading\n```\n")
    other.write_text("# `make` & more\n\n## Twice\n\n## Twice\n")
    for link in ("#run-a-page", "other.md", "other.md#make--more", "other.md#twice-1"):
        assert leads_somewhere(link, page), link
    for link in ("#no-heading", "#run", "none.md", "other.md#run-a-page", "other.md#twice-2"):
        assert not leads_somewhere(link, page), link


def test_the_files_of_the_architecture_exist():
    text = (ROOT / "docs/architecture.md").read_text()
    files = re.findall(r"`((?:needle|needle_tvm|src|runtime)/[\w/]+\.\w+)`", text)
    assert len(files) > 20 and not [name for name in files if not (ROOT / name).is_file()]


@pytest.mark.slow
def test_the_model_is_shipped_as_its_page_says(tmp_path):
    """Its commands and programs run in their order; what pip installs must be there."""
    if importlib.util.find_spec("basic_pitch") is None:
        pytest.skip("basic_pitch is not installed: make zoo")
    for package in ("onnx", "cryptography"):
        pytest.importorskip(package)
    page = (ROOT / "docs/ship-an-existing-model.md").read_text()
    found = re.findall(r"```(sh|python)\n(.*?)```", page, re.DOTALL)
    assert [language for language, _ in found] == ["sh", "sh", "python", "sh", "python"]
    for language, text in found:
        if language == "python":
            run(text, tmp_path, seconds=1000)
        elif "pip install" not in text:
            path = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"
            python_path = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
            done = subprocess.run(
                ["bash", "-ec", text],
                cwd=tmp_path,
                env={**os.environ, "PATH": path, "PYTHONPATH": python_path},
                capture_output=True,
                text=True,
                timeout=240,
            )
            assert done.returncode == 0, done.stderr
    for file in ("operators.html", "kernels.svg", "heard.npy", "notes/manifest.sig"):
        assert (tmp_path / file).stat().st_size > 60, file


PYTORCH = "docs/coming-from-pytorch.md"


def test_names_beside_those_of_pytorch_exist():
    found = names_in_tables({"ndl": ndl, "nn": ndl.nn, "needle_tvm": needle_tvm})
    assert len(found) > 40 and not [name for name, exists in found.items() if not exists]


@pytest.mark.slow
@pytest.mark.peer
def test_the_code_beside_pytorch_runs(tmp_path):
    torch = pytest.importorskip("torch")
    found = names_in_tables({"torch": torch})
    assert len(found) > 30 and not [name for name, exists in found.items() if not exists]
    run("\n".join(blocks(PYTORCH, "python(?: torch)?")), tmp_path)


def names_in_tables(roots):
    """Names such as `ndl.nn.Linear` in the tables, and whether they exist."""
    rows = [line for line in (ROOT / PYTORCH).read_text().splitlines() if line.startswith("|")]
    code = " ".join(re.findall("`([^`]+)`", "\n".join(rows)))
    found = {}
    for name in re.findall(rf"(?<![\w.])(?:{'|'.join(roots)})(?:\.[a-zA-Z_]\w*)+", code):
        root, *rest = name.split(".")
        value = functools.reduce(lambda owner, part: getattr(owner, part, None), rest, roots[root])
        found[name] = value is not None
    return found
