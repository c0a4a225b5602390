"""The section of tails: which calls are timed beside whom, and their quantiles."""

import os
from pathlib import Path

import numpy as np
import pytest

from bench.cpu import tails
from needle_runtime.process.child import Child
from needle_runtime.process.timing import Contestant
from tests.waiting import until


def counting(path):
    """A factory whose calls leave a line in a file."""

    def call():
        with open(path, "a") as file:
            file.write("a call\n")

    return call, lambda: [np.zeros(1)]


@pytest.mark.slow
def test_all_calls_are_timed_in_alternating_blocks(tmp_path):
    paths = [tmp_path / name for name in "ab"]
    entries = [Contestant(path.name, f"{__file__}:counting", {"path": str(path)}) for path in paths]
    shown = []
    times = tails.measure(entries, 1, 30, 3, shown.append)
    assert shown == [0, 1, 2]
    assert list(times) == ["a", "b"]
    for path in paths:
        blocks = times[path.name]
        assert [len(block) for block in blocks] == [10, 10, 10]
        assert all((block > 0).all() for block in blocks)
        assert len(path.read_text().splitlines()) == tails._WARM + 30


def test_a_neighbour_uses_its_core_until_it_is_ended():
    def seconds(pid):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")

    with Child("neighbour", "bench.cpu.tails:spin", {}, timeout=60.0) as child:
        pid = child.pid
        assert until(lambda: seconds(pid) > 1)
    assert not Path(f"/proc/{pid}").exists()


def test_quantiles_and_ratios_are_numpys():
    rng = np.random.default_rng(0)
    times = {name: [rng.random(1000) for _ in range(5)] for name in "ab"}
    found = tails.summarised(times)
    for name, blocks in times.items():
        joined = np.concatenate(blocks)
        expected = [*np.percentile(joined, [50, 99, 99.9]), joined.max()]
        np.testing.assert_allclose(list(found["quantiles"][name].values()), expected)
    assert list(found["ratios"]) == ["b"]
    pairs = zip(times["a"], times["b"], strict=True)
    by_block = [np.percentile(b, 99) / np.percentile(a, 99) for a, b in pairs]
    ratio = found["ratios"]["b"]["p99"]
    have = [ratio[key] for key in ("lower", "median", "upper")]
    np.testing.assert_allclose(have, np.percentile(by_block, [25, 50, 75]))
    headings, first, second = tails.table([{"case": "x", "beside": [{"neighbours": 2, **found}]}])
    assert first[:3] == ["x", "2", "a"] and first[-2:] == ["", ""]
    assert second[2] == "b" and second[-1] and len(headings) == len(second)
