"""`python -m needle_tvm inspect | verify | run | sign | keygen`, also with only the runtime."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import needle_tvm
from needle import nn
from needle_runtime.artifact import layout
from needle_runtime.artifact.manifest import read_manifest, write_manifest
from needle_tvm.__main__ import main
from needle_tvm.target import nvcc
from tests.needle_tvm.conftest import make_mlp, tensor


class Two(nn.Module):
    """Two inputs, two outputs."""

    def forward(self, x, scale):
        return x * scale, x + scale


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    rng = np.random.default_rng(5)
    x, scale = (tensor(rng.standard_normal((2, 3)).astype(np.float32)) for _ in range(2))
    wide = tensor(rng.standard_normal((4, 16)).astype(np.float32))
    half = tensor(rng.standard_normal((2, 8)).astype(ml_dtypes.bfloat16))
    needle_tvm.compile(make_mlp(16, 5), wide).export(folder / "mlp")
    needle_tvm.compile(Two().eval(), x, scale, stage="fused").export(folder / "two")
    needle_tvm.compile(make_mlp(8, 4, dtype="bfloat16"), half, stage="fused").export(
        folder / "half"
    )
    return folder


@pytest.fixture
def copied(models, tmp_path):
    return Path(shutil.copytree(models / "mlp", tmp_path / "copy"))


def command(capsys, *arguments):
    """Exit code, stdout and stderr of a command, run in this process."""
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as error:
        code = error.code
    out, err = capsys.readouterr()
    return code, out, err


def answer(capsys, *arguments):
    """The JSON object that a successful command prints."""
    code, out, err = command(capsys, *arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def fails(capsys, *arguments, code=1):
    """The one line that a failing command prints on stderr."""
    found, out, err = command(capsys, *arguments)
    assert (found, out, err.count("\n")) == (code, "", 1), (found, out, err)
    return err


BLOCKED = """
import sys
for name in ("needle", "tvm", "torch", "cryptography"):
    sys.modules[name] = None
from needle_tvm.__main__ import main
code = main(sys.argv[1:])
loaded = open("/proc/self/maps").read()
assert "libtvm_compiler" not in loaded
assert ("libtvm_runtime" in loaded) == (sys.argv[1] != "inspect")
sys.exit(code)
"""


@pytest.mark.parametrize("arguments", [["inspect"], ["verify"], ["run", "--random"]])
def test_works_where_there_is_only_the_runtime(models, arguments):
    run = [sys.executable, "-c", BLOCKED, *arguments, str(models / "mlp")]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_inspect(models, capsys):
    facts = answer(capsys, "inspect", models / "mlp")
    assert facts["inputs"] == [{"name": "x", "shape": [4, 16], "dtype": "float32"}]
    assert facts["outputs"] == [{"shape": [4, 5], "dtype": "float32"}]
    assert facts["target"]["kind"] == "llvm" and facts["lacking_features"] == []
    assert {"needle", "tvm", "tvm_ffi", "llvm"} <= set(facts["versions"])
    files = {p.name: p.stat().st_size for p in (models / "mlp").iterdir()}
    del files[layout.MANIFEST]
    assert {name: file["size"] for name, file in facts["files"].items()} == files
    assert facts["size"] == sum(files.values())
    assert facts["signature"] == "none" and facts["golden"]["source"] == "eager"
    code, out, err = command(capsys, "inspect", models / "mlp")
    assert (code, err) == (0, "")
    for part in ("x: float32(4, 16)", "output.0: float32(4, 5)", "kind llvm", "2 arrays", "lib.so"):
        assert part in out


@pytest.mark.skipif(nvcc.find() is None, reason="no nvcc to compile CUDA with")
def test_inspect_of_an_artifact_for_a_gpu(tmp_path, capsys):
    layer, x = nn.Linear(16, 8).eval(), np.zeros((4, 16), np.float32)
    options = {"target": "cuda:sm_90", "dtype": "bfloat16", "products": "cublas"}
    needle_tvm.compile(layer, x, **options).export(tmp_path / "a")
    facts = answer(capsys, "inspect", tmp_path / "a")
    assert facts["precision"] == "bfloat16" and facts["libraries"] == ["cublas"]
    assert [note["dtype"] for note in facts["products"]] == ["bfloat16"]
    assert facts["kernels"] and "compiled for a CUDA GPU (sm_90)" in facts["refusal"]
    text = command(capsys, "inspect", tmp_path / "a")[1]
    for line in (
        "needs +a CUDA GPU .sm_90., cublas",
        "here +is compiled for a CUDA GPU",
        "products +of bfloat16, 1 of 1 by cuBLAS",
        "kernels +.* 0 bytes spilled",
    ):
        assert re.search(f"^{line}", text, re.M), text


def test_inspect_tells_what_this_processor_lacks(copied, capsys):
    manifest = read_manifest(copied)
    target = {**manifest["target"], "features": ["sve", "amx-tile"], "mcpu": "future"}
    write_manifest(copied, {**manifest, "target": target})
    assert "sve" in answer(capsys, "inspect", copied)["lacking_features"]
    assert re.search(r"^here +lacks .*sve", command(capsys, "inspect", copied)[1], re.M)
    assert "compiled for future; this one lacks" in fails(capsys, "verify", copied)
    assert "this one lacks" in fails(capsys, "run", copied, "--random")


def test_verify(models, capsys):
    facts = answer(capsys, "verify", models / "mlp")
    assert facts["ok"] and facts["files"] == 4
    golden = facts["golden"]
    assert golden["passed"] and golden["source"] == "eager"
    assert 0 <= golden["differences"][0] <= golden["tolerances"][0] < 1e-3
    assert command(capsys, "verify", models / "mlp")[0] == 0


def test_verify_tells_of_damage_in_json_too(copied, capsys):
    (copied / layout.PARAMS).write_bytes(b"")
    code, out, err = command(capsys, "verify", copied, "--json")
    found = json.loads(out)
    assert code == 1 and not found["ok"] and "is damaged" in found["error"] and "is damaged" in err


def test_a_name_that_is_no_input_is_said(copied, capsys, tmp_path):
    np.save(tmp_path / "x.npy", np.zeros(1))
    assert "'foo' is not an input; they" in fails(capsys, "run", copied, f"foo={tmp_path}/x.npy")


def test_verify_names_the_damaged_file(copied, capsys):
    data = bytearray((copied / layout.PARAMS).read_bytes())
    data[-1] ^= 1
    (copied / layout.PARAMS).write_bytes(data)
    assert f"{layout.PARAMS}: is damaged" in fails(capsys, "verify", copied)


@pytest.mark.parametrize("wrong", [1e3, np.nan, np.inf])
def test_verify_runs_the_golden_example(copied, capsys, wrong):
    """Files and digests are right, but the model is not the exported one."""
    golden = load_file(copied / layout.GOLDEN)
    golden["output.0"].flat[7] = wrong
    save_file(golden, copied / layout.GOLDEN)
    write_manifest(copied, read_manifest(copied))
    code, out, err = command(capsys, "verify", copied, "--json")
    assert (code, json.loads(out)["ok"], err.count("\n")) == (1, False, 1)
    assert "golden outputs differ: output.0 by" in err


def test_verify_wants_a_golden_example(copied, capsys):
    (copied / layout.GOLDEN).unlink()
    manifest = read_manifest(copied)
    write_manifest(copied, manifest)
    assert "carries no golden.safetensors" in fails(capsys, "verify", copied)


def test_run_takes_and_writes_every_format(models, capsys, tmp_path):
    example = load_file(models / "two" / layout.GOLDEN)
    x, scale = example["input.0"], example["input.1"]
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "scale.npy", scale)
    np.savez(tmp_path / "both.npz", x=x, scale=scale)
    save_file({"scale": scale, "x": x}, tmp_path / "both.safetensors")
    for inputs in (
        ["x.npy", "scale.npy"],
        ["scale=scale.npy", "x=x.npy"],
        ["scale=scale.npy", "x.npy"],
        ["both.npz"],
        ["both.safetensors"],
    ):
        files = [name.replace("=", f"={tmp_path}/") if "=" in name else tmp_path / name
                 for name in inputs]  # fmt: skip
        for suffix in ("npz", "safetensors"):
            out = tmp_path / f"out.{suffix}"
            facts = answer(capsys, "run", models / "two", *files, "--out", out)
            found = dict(np.load(out)) if suffix == "npz" else load_file(out)
            assert set(found) == {"output.0", "output.1"}
            np.testing.assert_array_equal(found["output.0"], x * scale)
            np.testing.assert_array_equal(found["output.1"], x + scale)
            assert facts["outputs"][0]["shape"] == [2, 3] and facts["seconds"] is None
            assert facts["outputs"][1]["max"] == float((x + scale).max())
    np.save(tmp_path / "wide.npy", load_file(models / "mlp" / layout.GOLDEN)["input.0"])
    answer(capsys, "run", models / "mlp", tmp_path / "wide.npy", "--out", tmp_path / "y.npy")
    assert np.load(tmp_path / "y.npy").shape == (4, 5)


def test_run_at_random_and_repeated(models, capsys, tmp_path):
    outs = [tmp_path / f"{name}.npz" for name in "abc"]
    for out, seed in zip(outs, (1, 1, 2), strict=True):
        answer(capsys, "run", models / "two", "--random", "--seed", seed, "--out", out)
    first, again, other = (np.load(out)["output.0"] for out in outs)
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    times = answer(capsys, "run", models / "mlp", "--random", "--repeat", 50)["seconds"]
    assert times["calls"] == 50
    assert 0 < times["lower_quartile"] <= times["median"] <= times["upper_quartile"] < 1
    assert "us a call" in command(capsys, "run", models / "mlp", "--random", "--repeat", 2)[1]


def test_halves_need_a_format_that_has_them(models, capsys, tmp_path):
    answer(capsys, "run", models / "half", "--random", "--out", tmp_path / "y.safetensors")
    assert load_file(tmp_path / "y.safetensors")["output.0"].dtype == ml_dtypes.bfloat16
    line = fails(capsys, "run", models / "half", "--random", "--out", tmp_path / "y.npz", code=2)
    assert "cannot hold the array 'output.0' of dtype bfloat16; .safetensors can" in line
    assert not (tmp_path / "y.npz").exists()


def test_what_does_not_fit_is_one_line(models, capsys, tmp_path):
    two, mlp = models / "two", models / "mlp"
    np.save(tmp_path / "x.npy", np.zeros((2, 3), np.float32))
    np.savez(tmp_path / "x.npz", x=np.zeros((2, 3), np.float32), y=np.zeros(1))
    np.save(tmp_path / "code.npy", np.array([{}], object), allow_pickle=True)
    (tmp_path / "text.npy").write_text("text")
    (tmp_path / "text.npz").write_text("text")
    (tmp_path / "text.safetensors").write_text("text")
    (tmp_path / "x.txt").write_text("text")
    x = tmp_path / "x.npy"
    usage = [
        ([two], "no value for input x, scale: give a file, or --random"),
        ([two, x], "no value for input scale"),
        ([two, x, x, x], "all given already"),
        ([two, x, f"x={x}"], "input 'x' was given before"),
        ([two, f"x={tmp_path}/x.npz"], "a name is for .npy files"),
        ([two, tmp_path / "x.txt"], "must end in .npy, .npz, .safetensors"),
        ([two, "--random", "--out", tmp_path / "y.txt"], "must end in"),
        ([two, "--random", "--out", tmp_path / "y.npy"], "holds one array, the model gives 2"),
        ([two, "--random", "--out", x / "y.npz"], "is not a folder"),
        ([two, "--random", "--repeat", "0"], "0 is below 1"),
        ([two, "--random", "--repeat", "9" * 20], "is above 1000000"),
        ([two, "--random", "--out", "/proc/y.npz"], "/proc/y.npz: cannot be written"),
        ([two, "--random", "--nothing"], "unrecognized arguments: --nothing"),
    ]
    for arguments, message in usage:
        assert message in fails(capsys, "run", *arguments, code=2)
    failures = [
        ([two, tmp_path / "x.npz"], "'y' is not an input; they are x, scale"),
        ([mlp, x], "input 'x' is float32(2, 3), but the model was compiled for float32(4, 16)"),
        ([mlp, tmp_path / "absent.npy"], "absent.npy: No such file"),
        ([mlp, tmp_path / "code.npy"], "not a readable .npy file"),
        *(([mlp, tmp_path / f"text{suffix}"], f"not a readable {suffix} file")
          for suffix in (".npy", ".npz", ".safetensors")),
        ([tmp_path / "absent", "--random"], "no artifact there"),
    ]  # fmt: skip
    for arguments, message in failures:
        assert message in fails(capsys, "run", *arguments)
    assert "COMMAND" in fails(capsys, code=2)
    assert "invalid choice: 'fly'" in fails(capsys, "fly", code=2)


def test_signatures_from_keys_to_run(models, copied, capsys, tmp_path):
    pytest.importorskip("cryptography", reason="signatures need the [sign] extra")
    for name in ("mine", "other"):
        assert command(capsys, "keygen", tmp_path / name)[0] == 0
    assert "a key is never overwritten" in fails(capsys, "keygen", tmp_path / "mine")
    required = ["--require-signature", tmp_path / "mine.pub"]
    for verb, *rest in (["inspect"], ["verify"], ["run", "--random"]):
        assert "is not signed" in fails(capsys, verb, copied, *rest, *required)
    assert command(capsys, "sign", copied, "--key", tmp_path / "mine")[0] == 0
    for verb, *rest in (["inspect"], ["verify"], ["run", "--random"]):
        facts = answer(capsys, verb, copied, *rest, *required)
        assert verb == "run" or facts["signature"].startswith("good: ")
        other = ["--require-signature", tmp_path / "other.pub"]
        assert "other.pub signed" in fails(capsys, verb, copied, *rest, *other)
    assert "not checked" in answer(capsys, "inspect", copied)["signature"]
    assert "is not a private key" in fails(capsys, "sign", copied, "--key", tmp_path / "mine.pub")


def test_interrupted(models):
    """Ctrl-C gives one line, exit code 130, and leaves no temporary files."""
    run = [sys.executable, "-m", "needle_tvm", "run", str(models / "mlp"), "--random"]
    code = (
        "import os, signal, sys\n"
        "from needle_runtime.cli import artifact_command; from needle_tvm import __main__ as m\n"
        "artifact_command._time = lambda *_: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.exit(m.main(sys.argv[1:]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *run[3:], "--repeat", "5"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "TMPDIR": str(models)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert (done.returncode, done.stderr) == (130, "needle_tvm: error: interrupted\n")
    assert not list(models.glob("needle-*"))
