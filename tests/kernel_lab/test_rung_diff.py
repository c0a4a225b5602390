"""What a rung changes in the IR: held against the modules of both rungs, and printed."""

import contextlib
import io
import re
import shutil
import subprocess

import pytest

pytest.importorskip("tvm", reason="the lab needs the [tvm] extra")

from kernel_lab import registry
from kernel_lab.cli import main
from kernel_lab.errors import LabUsageError
from kernel_lab.rung_diff import rung_diff
from kernel_lab.workload import Case, Processor

PROCESSOR = Processor(cores=2, registers=32, lanes=16)


def case_of(ladder, **size):
    return Case(ladder.workload.size(ladder.device, size), PROCESSOR)


def test_tile_changes_the_loops_and_the_indices_of_the_product():
    ladder = registry.ladder("gemm", "cpu")
    found = rung_diff(ladder, "tile", case_of(ladder))
    removed, added = (
        [line[1:].strip() for line in found.text.splitlines() if re.match(rf"{sign} ", line)]
        for sign in (r"\-", r"\+")
    )
    assert removed == [
        "for i, j, k in T.grid(64, 64, 8):",
        'v_i, v_j, v_k = T.axis.remap("SSR", [i, j, k])',
    ]
    assert added == [
        "for i_0, j_0, k_0, i_1, k_1, j_1 in T.grid(2, 2, 2, 32, 4, 32):",
        "v_i = T.axis.spatial(64, i_0 * 32 + i_1)",
        "v_j = T.axis.spatial(64, j_0 * 32 + j_1)",
        "v_k = T.axis.reduce(8, k_0 * 4 + k_1)",
    ]
    assert found.text.startswith("--- naive, M=64, N=64, K=8\n+++ tile, M=64, N=64, K=8\n@@ ")


def test_a_first_rung_has_no_other_and_a_size_is_kept_if_asked_for():
    ladder = registry.ladder("gemm", "cpu")
    first = rung_diff(ladder, "naive", case_of(ladder))
    assert first.before is None and first.text == first.new and "T.grid(" in first.text
    asked = rung_diff(ladder, "tile", case_of(ladder, M=96, N=96, K=40), small=False)
    assert asked.size == {"M": 96, "N": 96, "K": 40} and "T.grid(3, 3, 10, 32, 4, 32)" in asked.text


def test_an_unknown_rung_and_a_size_that_one_of_the_two_refuses_are_errors():
    ladder = registry.ladder("gemm", "cuda")
    with pytest.raises(LabUsageError, match="no rung 'tiles'"):
        rung_diff(ladder, "tiles", case_of(ladder))
    with pytest.raises(LabUsageError, match="does not take this size: M=33"):
        rung_diff(ladder, "tensor_cores", case_of(ladder, M=33), small=False)


@pytest.mark.slow
@pytest.mark.parametrize("key", registry.LADDERS, ids="/".join)
def test_every_rungs_difference_applies(key, tmp_path):
    """GNU patch makes the rung's lines of those of the rung before, whatever their indentation.

    Lines that the difference cuts are compared up to the cut."""
    patch = shutil.which("patch")
    if patch is None:
        pytest.skip("needs patch")
    ladder = registry.ladder(*key)
    for rung in ladder.rungs:
        found = rung_diff(ladder, rung.name, case_of(ladder))
        if found.before is None:
            continue
        assert found.old != found.new or rung.kind == "failed", rung.name
        cut = [_cut(text) for text in (found.old, found.new)]
        (tmp_path / "text").write_text(cut[0])
        (tmp_path / "diff").write_text(_cut(found.text, mark=1))
        subprocess.run([patch, "-l", "text", "diff"], cwd=tmp_path, check=True, capture_output=True)
        assert (tmp_path / "text").read_text().split() == cut[1].split(), rung.name
        assert len(found.text.splitlines()) < 320, rung.name


def _cut(text, mark=0):
    """The text without indentation, and its lines cut; `mark` characters of each are kept."""
    return "".join(f"{line[:mark]}{line[mark:].lstrip()[:100]}\n" for line in text.splitlines())


def test_the_command_prints_it(capsys):
    ladder = registry.ladder("vector_add", "cpu")
    assert main(["vector_add", "--diff", "unroll", "--size", "N=512"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("--- parallel, N=512\n+++ unroll, N=512\n@@ ")
    assert "T.unroll(4)" in printed
    assert ladder["unroll"].after == "parallel"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["gemm", "--diff", "tiles"], "no rung 'tiles'"),
        (["gemm", "--diff", "tile", "--peers", "--json", "-"], "leave out --peers, --json"),
        (["gemm", "--diff", "tile", "--arch", "sm_80"], "is a GPU architecture"),
        (["gemm", "-d", "cuda", "--diff", "tensor_cores", "--size", "M=33"], "M=33 is not a"),
        (["--diff", "tile"], "name a workload"),
    ],
)
def test_a_mistake_is_one_line(arguments, words):
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            code = main(arguments)
        except SystemExit as ended:
            code = ended.code
    assert code == 2 and words in said.getvalue() and said.getvalue().count("\n") == 1
