"""Every bad argument gives one line on stderr that names it, exit code 2, and no written file."""

import itertools

import numpy as np
import pytest


def refused(done, *words):
    assert done.returncode == 2, done.stderr
    lines = done.stderr.splitlines()
    errors = [line for line in lines if ": error: " in line]
    assert len(errors) == 1, done.stderr
    assert lines[-1] == errors[0]
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in errors[0]
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-m", "resnet"], ["'resnet'", "mlp, conv, transformer"]),
        (["-m", "absent.py:make"], ["no file absent.py"]),
        (["-m", "absent.py"], ["'absent.py'", "absent.py:make"]),
        (["--out", "/proc/out"], ["/proc/out"]),
        (["--out", "/etc/passwd"], ["/etc/passwd is not a folder"]),
        (["--out", "x" * 300], ["cannot be written"]),
        (["--json", "/etc"], ["/etc: is a folder"]),
        (["--batch", "9" * 30], ["--batch", "above"]),
        (["--rounds", "9" * 10], ["--rounds", "above"]),
        (["-d", "tpu"], ["'tpu'", "cpu", "cuda"]),
        (["--stages", "noopt,fast"], ["'fast'", "noopt, fused, tuned"]),
        (["--stages", ""], ["''"]),
        (["--stages", "tuned", "--ladder"], ["--ladder", "--stages"]),
        (["--trials", "-1"], ["--trials", "-1"]),
        (["--trials", "many"], ["--trials", "'many'"]),
        (["--batch", "0"], ["--batch", "0"]),
        (["--batch", "2.5"], ["--batch", "'2.5'"]),
        (["--threads", "0"], ["--threads", "0"]),
        (["--rounds", "0"], ["--rounds", "0"]),
        (["-v", "-q"], ["not allowed"]),
        (["--bach", "8"], ["--bach"]),
    ],
)
def test_bad_arguments(call_app, tmp_path, arguments, words):
    refused(call_app("tvm_eval.py", "--out", tmp_path / "out", *arguments), *words)
    assert not (tmp_path / "out").exists()


def weights_of(sizes, classes=None):
    widths = list(itertools.pairwise(sizes))
    state = {}
    for number, (inputs, outputs) in enumerate(widths):
        state[f"layers.{number}.linear.weight"] = np.ones((inputs, outputs), np.float32)
        state[f"layers.{number}.linear.bias"] = np.ones((1, outputs), np.float32)
    if classes:
        state["head.weight"] = np.ones((sizes[-1], classes), np.float32)
        state["head.bias"] = np.ones((1, classes), np.float32)
    return state


def without(state, name):
    return {key: value for key, value in state.items() if key != name}


GOOD = weights_of([6, 5, 4], 3)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (without(GOOD, "layers.1.linear.bias"), ["layers.1.linear.bias"]),
        (without(GOOD, "layers.0.linear.weight"), ["layers.0.linear.weight"]),
        (without(GOOD, "head.bias"), ["head.bias"]),
        ({**GOOD, "extra": np.ones(3, np.float32)}, ["extra"]),
        ({**GOOD, "layers.0.linear.bias": np.ones((1, 6), np.float32)}, ["layers.0.linear.bias"]),
        ({**GOOD, "layers.0.linear.weight": np.ones(6, np.float32)}, ["layers.0.linear.weight"]),
        (
            {**GOOD, "layers.1.linear.weight": np.ones((7, 4), np.float32)},
            ["layers.1.linear.weight", "7", "layers.0.linear.weight", "5"],
        ),
        ({"something": np.ones(3, np.float32)}, ["layers.0.linear.weight", "something"]),
    ],
)
def test_weights_that_do_not_fit(call_app, tmp_path, state, words):
    from safetensors.numpy import save_file

    path = tmp_path / "weights.safetensors"
    save_file(state, path)
    done = call_app("tvm_eval.py", "--out", tmp_path / "out", "--weights", path)
    refused(done, str(path), *words)
    assert not (tmp_path / "out").exists()


def test_weights_that_cannot_be_read(call_app, tmp_path):
    from safetensors.numpy import save_file

    absent, whole, cut = (tmp_path / name for name in ("absent", "whole", "cut"))
    save_file(GOOD, whole)
    cut.write_bytes(whole.read_bytes()[:-10])
    for path in (absent, cut, tmp_path):
        refused(call_app("tvm_eval.py", "--weights", path, "--out", tmp_path / "out"), str(path))


def test_a_model_file_that_is_no_model(call_app, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("def make(): return 3\ndef broken(): raise ValueError('no luck')\nsize = 3\n")
    for function, word in (
        ("make", "(model, example inputs)"),
        ("absent", "'absent'"),
        ("size", "'size'"),
        ("broken", "no luck"),
    ):
        refused(call_app("tvm_eval.py", "-m", f"{path}:{function}"), str(path), word)
    done = call_app("tvm_eval.py", "-m", f"{path}:make", "--batch", "3")
    refused(done, str(path), "'batch'")
    path.write_text("def make(:\n")
    refused(call_app("tvm_eval.py", "-m", f"{path}:make"), str(path))


def test_cuda_without_a_gpu(run_app, tmp_path):
    import needle as ndl

    if ndl.cuda().enabled():
        pytest.skip("this machine has a GPU")
    refused(run_app("tvm_eval.py", "-d", "cuda", "--out", tmp_path / "out"), "cuda")
    assert not (tmp_path / "out").exists()


def test_places_that_cannot_be_written_are_refused_first(call_app, tmp_path):
    file = tmp_path / "file"
    file.touch()
    for arguments in (["--out", file], ["--json", file / "x.json"], ["--dump-ir", file / "ir"]):
        refused(call_app("tvm_eval.py", *arguments, cwd=tmp_path), str(file), "not a folder")
    refused(call_app("train_digits.py", "--out", file / "w", cwd=tmp_path), str(file))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_training_on_a_device_that_is_not_there(call_app, tmp_path):
    import needle as ndl

    if ndl.cuda().enabled():
        pytest.skip("this machine has a GPU")
    done = call_app("train_digits.py", "--device", "cuda", "--out", tmp_path / "w")
    refused(done, "'cuda' is not available")
    assert not (tmp_path / "w").exists()


@pytest.mark.parametrize("arguments", [["--epochs", "0"], ["--seed", "-1"], ["--device", "tpu"]])
def test_training_refuses_bad_arguments(call_app, arguments):
    refused(call_app("train_digits.py", *arguments), *arguments[:1])
