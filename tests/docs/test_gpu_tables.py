"""The atlas' tables of static figures are those that the lab computes."""

import re

import pytest

pytest.importorskip("tvm", reason="the atlas needs the [tvm] extra")

from kernel_lab import registry
from kernel_lab.run import Request, run
from needle_tvm.target import nvcc
from tests import ROOT

pytestmark = pytest.mark.slow

NVCC = "13.0"  # whose registers the tables have


# gemm's rungs take two minutes to interpret.
NAMES = [
    pytest.param(name, marks=pytest.mark.long) if name == "gemm" else name
    for name, device in registry.LADDERS
    if device == "cuda"
]


def table(page):
    """The rows of the table of static figures, as dicts by heading, a kernel each."""
    for one in re.findall(r"(?:^\|.*\n)+", (ROOT / "docs" / page).read_text(), re.M):
        head, _, *lines = [
            [cell.strip() for cell in line.strip("|").split("|")] for line in one.splitlines()
        ]
        if "registers" in head:
            return [dict(zip(head, line, strict=True)) for line in lines]
    raise ValueError(f"{page} has no table of static figures")


def counted(text):
    """ "A 32, B 1" as {"A": "32", "B": "1"}."""
    return dict(pair.split(" ") for pair in text.split(", ")) if text else {}


@pytest.mark.skipif(not nvcc.version().startswith(NVCC), reason=f"nvcc is not {NVCC}")
@pytest.mark.parametrize("name", NAMES)
def test_a_table_has_the_figures_of_its_ladder(name):
    result = run(Request(name, "cuda", timed=False, arch="sm_80", static=True))
    kernels = [(entry, one) for entry in result.rungs for one in entry.static.kernels]
    rows = table(f"atlas/{name}-cuda.md")
    assert len(rows) == len(kernels) >= len(result.rungs)
    compare(rows, kernels)


def compare(rows, kernels):
    for row, (entry, one) in zip(rows, kernels, strict=True):
        named = re.search(r"`(\w+)`", row["rung"])
        assert named is None or named[1] == entry.name
        held = one.occupancy
        found = {
            "threads": str(one.threads),
            "registers": str(one.registers),
            "shared, bytes": f"{one.shared:,}",
            "resident warps (max 64)": str(held.warps),
            "limit": ", ".join(held.limits),
        }
        assert {key: row[key] for key in found} == found, entry.name
        assert (one.spill_stores, one.spill_loads) == (0, 0)
        asked = entry.static.requests
        for key, exact in (("sectors per load", asked.loads), ("sectors per store", asked.stores)):
            told = counted(row[key])
            assert told == {buffer: f"{exact[buffer]:.3g}" for buffer in told}, entry.name
        if row.get("bank-conflict degree, load/store"):
            degrees = f"{asked.load_degree}/{asked.store_degree}"
            assert row["bank-conflict degree, load/store"] == degrees, entry.name
