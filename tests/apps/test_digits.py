"""Training on the digits, and compiling the trained model."""

import json
import re

import pytest

from tests import ROOT

pytestmark = pytest.mark.slow

pytest.importorskip("sklearn")


def test_digits_round_trip(run_app, tmp_path):
    weights = tmp_path / "digits.safetensors"
    done = run_app("train_digits.py", "--out", weights, "--seed", "3")
    assert done.returncode == 0, done.stderr
    trained = float(re.search(r"test accuracy ([\d.]+)%", done.stdout)[1]) / 100
    assert trained >= 0.96

    done = run_app(
        *("tvm_eval.py", "-m", "mlp", "--weights", weights, "--rounds", "1"),
        *("--out", tmp_path, "--json", "-"),
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["inputs"] == [{"shape": [8, 64], "dtype": "float32"}]
    digits = result["digits"]
    assert digits["identical"] is True
    assert set(digits["accuracy"]) == {"needle eager", "noopt", "fused", "tuned"}
    for accuracy in digits["accuracy"].values():
        assert accuracy == pytest.approx(trained, abs=5e-5)


def test_the_small_resnet(run_app, tmp_path):
    weights = tmp_path / "digits.safetensors"
    done = run_app("train_digits.py", "--model", "resnet", "--out", weights)
    assert done.returncode == 0, done.stderr
    assert float(re.search(r"test accuracy ([\d.]+)%", done.stdout)[1]) >= 98

    factory = f"{ROOT / 'apps' / 'models' / 'resnet.py'}:digits"
    done = run_app(
        *("tvm_eval.py", "-m", factory, "--weights", weights, "--rounds", "1"),
        *("--stages", "tuned", "--out", tmp_path, "--json", "-"),
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ok"] is True


def test_the_seed_decides_the_weights(run_app, tmp_path):
    def train(name, seed):
        path = tmp_path / name
        done = run_app("train_digits.py", "--epochs", "1", "--seed", seed, "--out", path, "-q")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        return path.read_bytes()

    assert train("one", 1) == train("again", 1)
    assert train("one", 1) != train("other", 2)
