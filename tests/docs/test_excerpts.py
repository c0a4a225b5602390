"""The ladders' code in the guide is that of the ladders."""

import importlib.util
import re
import sys

import pytest

pytest.importorskip("tvm", reason="the lab needs the [tvm] extra")

from kernel_lab import registry, source
from kernel_lab.ladders import gemm_cpu
from tests import ROOT

GUIDE = ROOT / "docs" / "guide"


def _excerpts():
    spec = importlib.util.spec_from_file_location("guide_excerpts", GUIDE / "excerpts.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_excerpts_are_the_ladders_code():
    """`python docs/guide/excerpts.py` writes them."""
    refreshed = _excerpts().refreshed
    for chapter in sorted(GUIDE.glob("[0-9][0-9]-*.md")):
        text = chapter.read_text()
        assert refreshed(text) == text, chapter.name
        # An excerpt that the pattern misses would never be compared.
        blocks = re.findall(r"^<!-- code:", text, re.M)
        found = re.findall(r"^<!-- code: \w+ [\w/]+ -->\n```python\n", text, re.M)
        assert len(blocks) == len(found), chapter.name


def test_exercises_are_numbered_from_1_in_every_chapter():
    for chapter in sorted(GUIDE.glob("[0-9][0-9]-*.md")):
        numbers = re.findall(r"^\*\*Exercise (\d+)\.\*\*", chapter.read_text(), re.M)
        assert list(map(int, numbers)) == list(range(1, len(numbers) + 1)), chapter.name


def test_a_changed_excerpt_is_written_again():
    text = "<!-- code: schedule gemm/cpu/parallel -->\n```python\nold\n```\n"
    new = _excerpts().refreshed(text)
    assert "def tile(" in new and "BLOCK = 32" in new and "old" not in new
    assert _excerpts().refreshed(new) == new


def test_parts_have_helpers_before_what_uses_them_and_no_docstrings():
    found = source.parts(registry.ladder("gemm", "cpu")["cache_block"].schedule)
    assert list(found)[-1] == "cache_block" and {"_pack", "_product", "ROW_TILES"} <= set(found)
    assert '"""' not in source.listing(found)
    for text in found.values():
        compile(text, "<part>", "exec")


def test_parts_have_what_a_definition_uses_of_its_workload():
    found = source.parts(registry.ladder("gelu_matmul", "cpu")["naive"].define)
    assert list(found)[-2:] == ["gelu", "define"] and {"_P", "_Q", "_horner"} <= set(found)
    constants, _, functions = source.listing(found).partition("\n\n\n")
    assert "_P = (\n    -2.72614225801306e-10,\n" in constants and "def" not in constants
    assert max(map(len, constants.splitlines())) <= 100 and functions.startswith("def _horner(")


def test_two_functions_of_one_name_are_both_listed():
    def define_packed(case):
        return gemm_cpu.define_packed(case)

    found = source.parts(define_packed)
    assert list(found)[-2:] == ["define_packed", "test_excerpts.define_packed"]
    assert "panels, bands" in found["define_packed"]
