"""The guide's tables of static figures are those that the lab computes."""

import re

import pytest

pytest.importorskip("tvm", reason="the guide needs the [tvm] extra")

from kernel_lab import registry
from kernel_lab.run import Request, run
from needle_tvm.target import nvcc
from tests import ROOT

pytestmark = pytest.mark.slow

NVCC = "13.0"  # whose registers the tables have


TABLES = {  # the chapters, sections and places of a ladder's tables
    "vector_add": [("04-gpu", "The table of a ladder", 0)],
    "gemm": [("04-gpu", "The table of a ladder", 1), ("16-gpu-rungs", None, 0)],
    "conv1d": [("16-gpu-rungs", "conv1d", 0)],
    "depthwise": [("16-gpu-rungs", "depthwise", 0)],
    "separable": [("16-gpu-rungs", "separable", 0)],
    "gelu_matmul": [("16-gpu-rungs", "gelu_matmul", 0)],
}


def table(chapter, section, number):
    """The rows of a table of figures, as dicts by heading, a kernel each."""
    text = (ROOT / "docs" / "guide" / f"{chapter}.md").read_text()
    if section is not None:
        (text,) = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    found = []
    for one in re.findall(r"(?:^\|.*\n)+", text, re.M):
        head, _, *lines = [
            [cell.strip() for cell in line.strip("|").split("|")] for line in one.splitlines()
        ]
        if "registers" in head:
            found.append([dict(zip(head, line, strict=True)) for line in lines])
    return found[number]


def counted(text):
    """ "A 32, B 1" as {"A": "32", "B": "1"}."""
    return dict(pair.split(" ") for pair in text.split(", ")) if text else {}


def test_every_gpu_ladder_has_a_table():
    assert set(TABLES) == {name for name, device in registry.LADDERS if device == "cuda"}


@pytest.mark.skipif(not nvcc.version().startswith(NVCC), reason=f"nvcc is not {NVCC}")
@pytest.mark.parametrize("name", TABLES)
def test_a_table_has_the_figures_of_its_ladder(name):
    result = run(Request(name, "cuda", timed=False, arch="sm_80", static=True))
    kernels = [(entry, one) for entry in result.rungs for one in entry.static.kernels]
    rows = [row for place in TABLES[name] for row in table(*place)]
    order = {entry.name: number for number, entry in enumerate(result.rungs)}
    assert len(rows) == len(kernels) >= len(order)
    for row, (entry, one) in zip(rows, kernels, strict=True):
        named = re.search(r"`(\w+)`", row["rung"])
        assert named is None or named[1] == entry.name
        held = one.occupancy
        found = {
            "threads": str(one.threads),
            "registers": str(one.registers),
            "shared, bytes": f"{one.shared:,}",
            "warps of 64": str(held.warps),
            "limit": ", ".join(held.limits),
        }
        assert {key: row[key] for key in found} == found, entry.name
        assert (one.spill_stores, one.spill_loads) == (0, 0)
        asked = entry.static.requests
        for key, exact in (("sectors a load", asked.loads), ("a store", asked.stores)):
            told = counted(row[key])
            assert told == {buffer: f"{exact[buffer]:.3g}" for buffer in told}, entry.name
        if row.get("bank degree, load/store"):
            degrees = f"{asked.load_degree}/{asked.store_degree}"
            assert row["bank degree, load/store"] == degrees, entry.name
