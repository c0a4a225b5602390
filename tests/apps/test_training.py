"""Training from the command line: it learns, logs, and resumes exactly where it stopped."""

import json
import os
import pickle
import re
import signal
import subprocess
import sys

import numpy as np
import pytest

from apps import training
from tests import ROOT
from tests.waiting import interrupt

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def cifar10(tmp_path_factory):
    """Pictures whose class shows in their colour, in the published Python format."""
    folder = tmp_path_factory.mktemp("cifar10")
    rng = np.random.default_rng(0)
    for name in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        labels = rng.integers(0, 10, 12)
        images = rng.integers(0, 100, (12, 3, 1024)) + 15 * labels[:, None, None]
        content = {b"data": images.reshape(12, 3072).astype(np.uint8), b"labels": labels.tolist()}
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
    return folder


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    """A text in which each word determines the next."""
    folder = tmp_path_factory.mktemp("text")
    for name, lines in (("train", 60), ("test", 10)):
        lines = [" ".join(f"w{(i + j) % 7}" for j in range(5)) for i in range(lines)]
        (folder / f"ptb.{name}.txt").write_text("\n".join(lines) + "\n")
    return folder


WORDS = ["{text}", "--batch", "5", "--length", "9", "--size", "16", "--epochs", "2"]
TINY = {
    "mlp": ("train_digits.py", ["--batch", "400", "--epochs", "3"]),
    "resnet": ("train_digits.py", ["--model", "resnet", "--batch", "400", "--epochs", "3"]),
    "cifar10": ("train_cifar10.py", ["{cifar10}", "--batch", "16", "--epochs", "3"]),
    "lstm": ("train_ptb.py", WORDS),
    "transformer": ("train_ptb.py", [*WORDS, "--model", "transformer"]),
}


@pytest.fixture
def train(run_app, cifar10, text, tmp_path):
    def run(name, out, *more):
        script, arguments = TINY[name]
        if "digits" in script:
            pytest.importorskip("sklearn")
        filled = [a.format(cifar10=cifar10, text=text) for a in arguments]
        return run_app(script, *filled, "--out", tmp_path / f"{out}.safetensors", *more)

    return run


def records(path):
    """The log without fields that differ between runs."""
    out = []
    for line in path.read_text().splitlines():
        values = json.loads(line)
        if "started" not in values and "resumed" not in values:
            values.pop("seconds", None)
            out.append(values)
    return out


@pytest.mark.parametrize("name", TINY)
def test_a_resumed_run_ends_with_the_same_weights(train, tmp_path, name):
    done = train(name, "whole")
    assert done.returncode == 0, done.stderr
    assert re.search(r"(test accuracy|test loss) [\d.]+.* wrote .*whole\.safetensors", done.stdout)
    whole = records(tmp_path / "whole.jsonl")
    steps = whole[-1]["step"]
    assert [r["step"] for r in whole if "loss" in r] == list(range(1, steps + 1))
    epochs = [r for r in whole if "epoch" in r]
    assert [r["epoch"] for r in epochs] == list(range(1, len(epochs) + 1))
    assert "train_loss" in epochs[0] and {"test_accuracy", "test_loss"} & set(epochs[0])

    first = steps // len(epochs) + 2  # in the middle of an epoch
    done = train(name, "broken", "--stop-after", first)
    assert done.returncode == 0, done.stderr
    assert "stopped after step" in done.stdout and not (tmp_path / "broken.safetensors").exists()
    # As if the run had continued and crashed before the next checkpoint
    log = tmp_path / "broken.jsonl"
    log.write_text(log.read_text() + f'{{"step": {first + 1}, "loss": 0.5}}\n{{"step": ')
    done = train(name, "broken", "--resume", "--stop-after", 1)
    assert done.returncode == 0, done.stderr
    done = train(name, "broken", "--resume")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "broken.safetensors").read_bytes() == (
        tmp_path / "whole.safetensors"
    ).read_bytes()
    assert records(log) == whole


@pytest.mark.parametrize(("name", "epochs"), [("lstm", 40), ("transformer", 15), ("cifar10", 12)])
def test_it_learns(train, tmp_path, name, epochs):
    done = train(name, "out", "--epochs", epochs)
    assert done.returncode == 0, done.stderr
    losses = [r["train_loss"] for r in records(tmp_path / "out.jsonl") if "epoch" in r]
    assert losses[-1] < 0.6 * losses[0]


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_was_cut_off_goes_on_from_its_checkpoint(train, text, tmp_path, ending):
    arguments = [a.format(text=text) for a in TINY["lstm"][1]] + ["--epochs", "40"]
    out = tmp_path / "cut.safetensors"
    process = subprocess.Popen(
        [
            *(sys.executable, "apps/train_ptb.py", *arguments),
            *("--out", str(out), "--checkpoint-every", "3"),
        ],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        for line in process.stderr:
            if "epoch   3" in line:
                break
        if ending == signal.SIGINT:
            _, stderr = interrupt(process)
        else:
            process.kill()
            process.communicate()
    finally:
        process.kill()
        process.wait()
    if ending == signal.SIGINT:
        assert process.returncode == 130, stderr
        assert stderr.splitlines()[-1] == "train_ptb.py: error: interrupted"
    assert not out.exists()
    for name, more in (("cut", ["--resume"]), ("whole", [])):
        done = train("lstm", name, "--epochs", "40", *more)
        assert done.returncode == 0, done.stderr
    assert out.read_bytes() == (tmp_path / "whole.safetensors").read_bytes()
    assert records(tmp_path / "cut.jsonl") == records(tmp_path / "whole.jsonl")


def test_resuming_what_does_not_fit(train, tmp_path):
    def refused(name, *more, words):
        done = train(name, "out", "--resume", *more)
        assert done.returncode == 2, done.stderr
        assert "Traceback" not in done.stderr
        for word in words:
            assert word in done.stderr.splitlines()[-1]

    checkpoint = tmp_path / "out.checkpoint.safetensors"
    refused("lstm", words=["no checkpoint", str(checkpoint)])
    assert train("lstm", "out", "--stop-after", "3").returncode == 0
    refused("lstm", "--batch", "4", words=["batch is 4", "began with 5"])
    refused("transformer", words=["model is 'transformer'", "began with 'lstm'"])
    whole = checkpoint.read_bytes()
    checkpoint.write_bytes(whole[:-5])
    refused("lstm", words=[str(checkpoint), "truncated"])
    assert train("lstm", "other").returncode == 0
    os.replace(tmp_path / "other.safetensors", checkpoint)
    refused("lstm", words=[str(checkpoint), "file of weights"])


def test_data_that_is_not_there_is_one_line(run_app, tmp_path):
    for script, word in (("train_cifar10.py", "data_batch_1"), ("train_ptb.py", "train.txt")):
        done = run_app(script, tmp_path, "--out", tmp_path / "out" / "w")
        assert done.returncode == 2 and word in done.stderr and str(tmp_path) in done.stderr
        assert len(done.stderr.splitlines()) == 1 and not (tmp_path / "out").exists()
    (tmp_path / "test_batch").write_bytes(b"no")
    for i in range(1, 6):
        (tmp_path / f"data_batch_{i}").write_bytes(b"no")
    done = run_app("train_cifar10.py", tmp_path)
    assert done.returncode == 2 and "not a CIFAR-10 batch" in done.stderr


def test_the_learning_rate_is_a_function_of_the_step():
    rates = [training.learning_rate(2.0, step, 100, 0.1) for step in range(100)]
    assert rates[0] == pytest.approx(2 / 11) and max(rates) == rates[10] == 2.0
    assert rates == sorted(rates[:10]) + sorted(rates[10:], reverse=True)
    assert 0 < rates[-1] < 0.01
