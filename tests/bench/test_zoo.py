"""The zoo's own models through `bench.zoo`: compiled, compared, exported, reloaded and timed."""

import pytest

pytestmark = [pytest.mark.peer, pytest.mark.slow]


@pytest.mark.parametrize("name", ["unet transposed", "gru classifier", "seq2seq"])
def test_a_sample_of_the_zoo(name):
    torch = pytest.importorskip("torch")
    from bench import zoo

    with torch.random.fork_rng():
        before = torch.is_grad_enabled()
        try:
            row = zoo.measured("others", name, rounds=1)
        finally:
            torch.set_grad_enabled(before)
    assert row["error"] <= zoo.MOST
    assert row["reloads"]
    assert row["ms"]["needle"] > 0


def test_the_table_counts_what_is_right(tmp_path):
    from bench import zoo

    right = {"compile_s": 1.0, "error": 1e-6, "reloads": True, "ms": {"needle": 1.0}}
    rows = {"a/b": right, "a/c": {**right, "error": 1e-3}, "a/d": {"fails": "no translation"}}
    text = zoo.table(rows)
    assert "| a/d | no translation |" in text
    assert text.endswith("1 of 3 compile, agree and reload")
