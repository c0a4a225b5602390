"""The code of a rung, with the helpers that it uses."""

import pytest

pytest.importorskip("tvm", reason="the lab needs the [tvm] extra")

from kernel_lab import registry, source
from kernel_lab.ladders import gemm_cpu


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
    assert list(found)[-2:] == ["define_packed", "test_source.define_packed"]
    assert "panels, bands" in found["define_packed"]
