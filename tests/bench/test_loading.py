"""A sample of the 100 models through `bench.loading`, and what its table counts."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tvm", reason="needs the [tvm] extra")

SAMPLE = [
    ("others", "unet transposed"),
    ("others", "gru classifier"),
    ("timm", "vit_tiny_patch16_224"),
    ("transformers", "bert"),
]


@pytest.mark.slow
@pytest.mark.peer
@pytest.mark.filterwarnings("ignore")  # ONNX Runtime and the packages warn of themselves
@pytest.mark.parametrize(("group", "name"), SAMPLE)
def test_a_sample_agrees_with_pytorch_at_every_step(group, name):
    if group != "others":
        pytest.importorskip(group)
    from bench import loading

    with torch.random.fork_rng():
        row = loading.measured(group, name, loading.STEPS)
    assert sorted(row) == sorted(loading.STEPS)
    for step, found in row.items():
        assert loading.is_right(step, found), (step, found)


def test_a_refusal_counts_as_a_miss():
    from bench import loading

    refused = {"fails": "UnsupportedError: needle has not the operator | aten.x", "s": 1.0}
    right = {"error": 1e-6, "s": 1.0}
    rows = {
        "a/b": {"load": {"nodes": 1, "s": 1.0}, **dict.fromkeys(("eager", "onnx", "tuned"), right)},
        "a/c": {"load": {"nodes": 1, "s": 1.0}, "eager": {"error": float("nan"), "s": 1.0}},
        "a/d": {"load": refused},
    }
    text = loading.table(rows)
    assert "| a/d | UnsupportedError: needle has not the operator / aten.x |" in text
    assert "load: 2 of 3 are right" in text
    assert "eager: 1 of 3 are right" in text
    assert "tuned: 1 of 3 are right" in text


def test_a_hundred_models_of_which_thirty_are_differentiated():
    from bench import loading

    names = {(group, name) for group, models in loading.groups().items() for name in models}
    assert len(names) == 100
    assert len(loading.differentiated()) == loading.DIFFERENTIATED
    assert loading.differentiated() <= names


def test_code_that_reloads_with_other_bits_is_wrong():
    from bench import loading

    assert loading.is_right("tuned", {"error": 1e-5, "reloads": True})
    assert not loading.is_right("tuned", {"error": 1e-5, "reloads": False})
    assert not loading.is_right("tuned", {"error": 1e-3, "reloads": True})
    assert loading.is_right("gradients", {"error": 5e-4})
