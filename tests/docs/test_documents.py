"""The code in README and CONTRIBUTING runs, and the commands they name exist."""

import os
import re
import shlex
import subprocess
import sys

import pytest

from tests import ROOT


def blocks(name, language):
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_python_blocks_run(name, tmp_path):
    script = tmp_path / "script.py"  # a file, so that inspect finds the source of its classes
    script.write_text("\n".join(blocks(name, "python")))
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=tmp_path,
        env={**os.environ, "NEEDLE_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr


def test_the_demo_is_as_short_as_it_says():
    demo, *_ = blocks("README.md", "python")
    statements = [
        line for line in demo.splitlines() if line and not line.startswith(("import", "from"))
    ]
    assert len(statements) <= 10


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
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


@pytest.mark.parametrize(
    "name", ["README.md", "CONTRIBUTING.md", "docs/architecture.md", "docs/performance.md"]
)
def test_links_lead_somewhere(name):
    path = ROOT / name
    for link in re.findall(r"\]\(([^)#]+)", path.read_text()):
        assert link.startswith("https://") or (path.parent / link).exists(), link
