"""A sample of the zoo through `bench.zoo`: compiled, compared, exported, reloaded and timed."""

import numpy as np
import pytest

pytestmark = pytest.mark.slow

SAMPLE = [
    *[("others", name) for name in ("unet transposed", "unet bilinear", "lstm classifier")],
    *[("others", name) for name in ("gru classifier", "seq2seq", "wavenet")],
    ("torchvision", "shufflenet_v2_x1_0"),
    ("timm", "vit_tiny_patch16_224"),
    ("transformers", "bert"),
    ("transformers", "gpt2"),
]


@pytest.mark.peer
@pytest.mark.filterwarnings("ignore")  # the exporter warns of itself and of what it traces
@pytest.mark.parametrize(("group", "name"), SAMPLE)
def test_a_sample_of_the_zoo(group, name):
    torch = pytest.importorskip("torch")
    if group != "others":
        pytest.importorskip(group)
    from bench import zoo

    with torch.random.fork_rng():
        before = torch.is_grad_enabled()
        try:
            row = zoo.measured(group, name, "torchscript", rounds=1)
        finally:
            torch.set_grad_enabled(before)
    for way in zoo.WAYS:
        assert zoo.is_right(row[way]), row[way]
    assert sorted(row["ms"]) == sorted(zoo.TIMED)


def test_differences_are_of_the_largest_element():
    pytest.importorskip("tvm", reason="needs the [tvm] extra")
    from bench import zoo

    want = [np.array([4.0, -8.0]), np.array([], "float32"), np.array([True])]
    assert zoo.difference(want, want) == 0.0
    assert zoo.difference(want, [want[0] + [0, 1], *want[1:]]) == 0.125
    assert np.isnan(zoo.difference(want, [want[0] * np.nan, *want[1:]]))
    assert zoo.difference(want, [want[0][:1], *want[1:]]) == float("inf")
    assert zoo.difference(want, want[:2]) == float("inf")


def test_the_table_counts_what_is_right():
    pytest.importorskip("tvm", reason="needs the [tvm] extra")
    from bench import zoo

    right = {"compile_s": 1.0, "error": 1e-6, "reloads": True}
    rows = {
        "a/b": {"torch": right, "onnx": right, "ms": {"needle": 1.0}},
        "a/c": {"torch": {**right, "error": 1e-3}, "onnx": {**right, "reloads": False}, "ms": {}},
        "a/d": {"torch": right, "onnx": {"fails": "no translation"}, "ms": {}},
        "a/e": {"torch": {**right, "error": float("nan")}, "onnx": right, "ms": {}},
    }
    text = zoo.table(rows)
    assert "| a/d | 1.0 | 1.0e-06 | no translation |" in text
    assert "through torch: 2 of 4 compile, agree and reload" in text
    assert "through onnx: 2 of 4 compile, agree and reload" in text
