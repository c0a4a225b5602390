"""The models known by name: their shapes, PyTorch's results, and every stage."""

import json

import numpy as np
import pytest

import needle as ndl
import needle_tvm
from apps import models
from apps.contestants import build_model
from apps.models import language
from needle.testing import assert_close
from needle_runtime.process.child import load_function
from needle_tvm.check import parity
from needle_tvm.stages import STAGES

pytestmark = pytest.mark.slow


def tensor(array):
    return ndl.Tensor(array, requires_grad=False)


def conv_bn(inputs, outputs, size):
    return size * size * inputs * outputs + 3 * outputs  # bias, and the norm's weight and bias


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("encoder", (2, 100, 320)),
        ("bert", (1, 128, 384)),
        ("mlp-391-777-333-50", (5, 391)),
        ("lstm-128", (20, 16)),
        ("lstm-256", (35, 16)),
    ],
)
def test_a_model_has_the_sizes_of_its_row(name, shape):
    """Two rows of one factory differ in nothing else."""
    model = models.find(name)
    _, inputs = build_model(model.factory, batch=model.batches[0], **model.options)
    assert inputs[0].shape == shape


def test_resnet9_is_the_one_described():
    model, (x,) = build_model(models.find("conv").factory)
    assert x.shape == (8, 3, 32, 32) and not model.training
    expected = (
        conv_bn(3, 16, 7)
        + conv_bn(16, 32, 3)
        + 2 * conv_bn(32, 32, 3)
        + conv_bn(32, 64, 3)
        + conv_bn(64, 128, 3)
        + 2 * conv_bn(128, 128, 3)
        + 128 * 128
        + 128
        + 128 * 10
        + 10
    )
    assert sum(p.size for p in model.parameters()) == expected
    assert model(tensor(x)).shape == (8, 10)
    means = [b.numpy() for name, b in model.named_buffers() if name.endswith("running_mean")]
    assert len(means) == 8 and all(np.abs(mean).max() > 0 for mean in means)


def test_the_transformer_is_the_one_described():
    model, (x,) = build_model(models.find("transformer").factory, batch=3)
    assert x.shape == (3, 10, 512)
    y, h = model(tensor(x))
    assert y.shape == h.shape == (3, 10, 512)
    assert (len(model.layers), model.batch_first, model.sequence_len) == (2, True, 10)
    attention = model.layers[0].attention
    assert (attention.num_head, attention.dim_head, attention.attn.causal) == (8, 32, False)
    later = x.copy()
    later[:, 5:] += 1
    assert (np.abs(model(tensor(later))[0].numpy() - y.numpy())[:, :5] > 0).any()  # not causal


@pytest.mark.parametrize("name", ["conv", "transformer"])
def test_models_are_the_same_in_every_process(name):
    first, (x,) = build_model(models.find(name).factory)
    second, (z,) = build_model(models.find(name).factory)
    assert (x == z).all()
    state = {key: value.numpy() for key, value in first.state_dict().items()}
    assert all((value.numpy() == state[key]).all() for key, value in second.state_dict().items())


@pytest.mark.peer
@pytest.mark.parametrize(("name", "peer"), [("conv", "resnet9"), ("transformer", "Transformer")])
def test_models_are_torchs(name, peer):
    torch = pytest.importorskip("torch")
    model, (x,) = build_model(models.find(name).factory)
    state = {key: value.numpy() for key, value in model.state_dict().items()}
    theirs = load_function(f"apps.peer_models:{peer}")(state).eval()
    with torch.inference_mode():
        expected = theirs(torch.from_numpy(x))
    found = model(tensor(x))
    if name == "transformer":
        found, expected = found[0], expected[0]
    assert_close(found.numpy(), expected.numpy(), 512 * 10, scale=1.0)


@pytest.mark.parametrize("name", ["conv", "transformer"])
def test_evaluation_through_every_stage(run_app, tmp_path, name):
    done = run_app(
        *("tvm_eval.py", "-m", name, "--batch", "2", "--rounds", "1"),
        *("--out", tmp_path, "--json", "-"),
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["ok"] is True and list(result["stages"]) == list(STAGES)
    assert all(stage["parity"]["ok"] for stage in result["stages"].values())
    assert len(result["timing"]["contestants"]) == 1 + len(STAGES)


@pytest.mark.peer
@pytest.mark.parametrize("name", ["conv", "transformer"])
def test_peers_are_timed_beside_it(run_app, tmp_path, name):
    pytest.importorskip("torch")
    pytest.importorskip("onnxruntime")
    done = run_app(
        *("tvm_eval.py", "-m", name, "--batch", "2", "--rounds", "1", "--stages", "tuned"),
        *("--peers", "--out", tmp_path, "--json", "-"),
    )
    assert done.returncode == 0, done.stderr
    names = [entry["name"] for entry in json.loads(done.stdout)["timing"]["contestants"]]
    assert names == ["needle eager", "tuned", "PyTorch eager", "ONNX Runtime"]


@pytest.mark.parametrize("kind", ["rnn", "lstm", "transformer"])
def test_language_models(kind, cache_dir, monkeypatch):
    monkeypatch.setenv("NEEDLE_CACHE_DIR", str(cache_dir))
    ndl.manual_seed(0)
    options = {"num_head": 2, "dim_head": 4}
    model = language.LanguageModel(8, 30, 12, 2, kind, 10, **options).eval()
    words = np.random.default_rng(0).integers(0, 30, (7, 3), dtype=np.int32)
    scores, state = model(tensor(words))
    assert scores.shape == (21, 30)
    changed = words.copy()
    changed[4:] = 0
    before = model(tensor(changed))[0].numpy()[: 4 * 3]  # later words do not change these
    np.testing.assert_allclose(before, scores.numpy()[: 4 * 3], rtol=1e-5, atol=1e-6)
    if kind != "transformer":
        first, state = model(tensor(words[:4]))
        second, _ = model(tensor(words[4:]), state)
        joined = np.concatenate([first.numpy(), second.numpy()])
        np.testing.assert_allclose(joined, scores.numpy(), rtol=1e-5, atol=1e-6)
    stages = {stage: needle_tvm.compile(model, tensor(words), stage=stage) for stage in STAGES}
    for rung in parity.ladder(model, [tensor(words)], {"eager": None, **stages}):
        assert rung.ok, rung
    with pytest.raises(ValueError, match="'gru'"):
        language.LanguageModel(8, 30, 12, seq_model="gru")
