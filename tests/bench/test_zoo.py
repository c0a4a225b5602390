"""A sample of the zoo through `bench.zoo`: loaded, compiled, compared, reloaded, timed."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tvm", reason="needs the [tvm] extra")

from bench import zoo, zoo_steps  # noqa: E402

COMPILED = ("tuned", "imported", "times")
# Every step for some, and for the others what the first ones do not take.
SAMPLE = [
    *[("others", name, tuple(zoo.STEPS)) for name in ("unet transposed", "gru classifier")],
    ("timm", "vit_tiny_patch16_224", tuple(zoo.STEPS)),
    ("transformers", "bert", tuple(zoo.STEPS)),
    *[("others", name, COMPILED) for name in ("unet bilinear", "lstm classifier")],
    *[("others", name, COMPILED) for name in ("seq2seq", "wavenet")],
    ("torchvision", "shufflenet_v2_x1_0", COMPILED),
    ("transformers", "gpt2", COMPILED),
]


@pytest.mark.slow
@pytest.mark.peer
@pytest.mark.filterwarnings("ignore")  # the exporter and the packages warn of themselves
@pytest.mark.parametrize(("group", "name", "steps"), SAMPLE)
def test_a_sample_of_the_zoo_is_right_at_every_step(group, name, steps):
    if group != "others":
        pytest.importorskip(group)
    with torch.random.fork_rng():
        row = zoo.measured(group, name, steps, "torchscript", rounds=1)
    for step in steps:
        assert zoo.is_right(step, row[step]), (step, row[step])
    assert sorted(row["times"]["ms"]) == sorted(zoo.TIMED)


def test_the_table_counts_what_is_right_and_a_refusal_as_a_miss():
    refused = {"fails": "UnsupportedError: needle has not the operator | aten.x", "s": 1.0}
    load, right = {"nodes": 1, "s": 1.0}, {"error": 1e-6, "s": 1.0}
    tuned = {**right, "compile_s": 3.0, "reloads": True}
    ms = {"needle": 2.0, "PyTorch": 3.0, "ONNX Runtime": 5.0}
    rows = {
        "a/b": {"load": load, "eager": right, "tuned": tuned, "times": {"ms": ms}},
        "a/c": {"load": load, "eager": {"error": float("nan")}, "tuned": {**tuned, "error": 1e-3}},
        "a/d": {"load": refused},
        "a/e": {"load": load, "eager": right, "tuned": {**tuned, "reloads": False}},
    }
    text = zoo.table(rows)
    assert "| a/b | 1.0 | 1.0e-06 | 1.0e-06 | 3.0 | 2.0 | 3.0 |  | 5.0 | 1.50 |" in text
    assert "| a/d | UnsupportedError: needle has not the operator / aten.x |" in text
    assert "1.0e-06 (reloaded otherwise)" in text
    for line in ("load: 3 of 4", "eager: 2 of 4", "tuned: 1 of 4", "times: 1 of 4"):
        assert f"{line} are right" in text
    assert "gradients" not in text  # which nobody asked for


def test_a_hundred_models_of_which_thirty_are_differentiated():
    names = {(group, name) for group, models in zoo.groups().items() for name in models}
    assert len(names) == 100
    assert len(zoo.differentiated()) == zoo.DIFFERENTIATED
    assert zoo.differentiated() <= names


def test_code_that_reloads_with_other_bits_is_wrong():
    assert zoo.is_right("tuned", {"error": 1e-5, "reloads": True})
    assert not zoo.is_right("tuned", {"error": 1e-5, "reloads": False})
    assert not zoo.is_right("tuned", {"error": 1e-3, "reloads": True})
    assert zoo.is_right("gradients", {"error": 5e-4})


def test_a_wrong_gradient_is_named():
    right = {"weight": np.ones(4, np.float32), "bias": np.full(2, 1e-9, np.float32)}
    found = {"weight": right["weight"], "bias": -right["bias"]}  # which is rounding alone
    assert zoo.is_right("gradients", zoo_steps._far(found, right))
    far = zoo_steps._far({**found, "weight": right["weight"] + np.float32(0.25)}, right)
    assert not zoo.is_right("gradients", far) and (far["error"], far["at"]) == (0.25, "weight")
    assert zoo_steps._far({"bias": found["bias"]}, right)["at"] == "weight"  # there is none
