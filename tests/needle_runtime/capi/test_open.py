"""Opening artifacts through the C interface: it refuses the artifacts that Python refuses, as the
same kind of error, and runs those of earlier versions."""

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import needle_runtime
from needle_runtime.artifact import Artifact, signature
from needle_runtime.artifact.manifest import read_manifest, write_manifest
from needle_runtime.errors import ArtifactError, KeyFileError, SignatureError, TargetError
from tests.needle_runtime.capi.library import Failed, Program, Status, prefix

STATUS = (  # the first that fits
    (SignatureError, Status.SIGNATURE),
    (KeyFileError, Status.SIGNATURE),
    (TargetError, Status.TARGET),
    (ArtifactError, Status.ARTIFACT),
)
KEPT = Path(__file__).parents[1] / "kept"  # artifacts that released versions have written


@pytest.fixture
def copied(models, tmp_path):
    return Path(shutil.copytree(models / "mlp", tmp_path / "mlp"))


def refused(path, key=None):
    """The reasons why Python and C refuse an artifact, with the same status."""
    with pytest.raises(tuple(kind for kind, _ in STATUS)) as theirs:
        needle_runtime.load(path, require_signature=key)
    with pytest.raises(Failed) as ours:
        Program(path, key)
    wanted = next(status for kind, status in STATUS if isinstance(theirs.value, kind))
    assert ours.value.status == wanted, (theirs.value, ours.value)
    return str(theirs.value), str(ours.value)


def test_no_artifact(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "missing", tmp_path / "file", tmp_path, tmp_path / "file" / "in"):
        theirs, ours = refused(path)
        assert ours == theirs == f"{path}: no artifact there (manifest.json is missing)"


@pytest.mark.parametrize("name", ["lib.so", "params.safetensors", "golden.safetensors"])
def test_damaged_files(copied, name):
    file = copied / name
    whole = file.read_bytes()
    for bad in (whole[:-1], whole + b"\0", whole[:100] + b"\xff" + whole[101:], b""):
        file.write_bytes(bad)
        theirs, ours = refused(copied)
        assert f"{file}: is damaged" in ours or f"{file}: is too long" in ours, (theirs, ours)
    file.unlink()
    assert f"{file}: is missing" in refused(copied)[1]


def test_other_kinds_of_files(copied):
    for make in (Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        shutil.move(copied / "lib.so", copied.parent / "lib.so")
        make(copied / "lib.so")
        assert "lib.so: " in refused(copied)[1]  # and a pipe does not make it wait
        (copied / "lib.so").rmdir() if (copied / "lib.so").is_dir() and not (
            copied / "lib.so"
        ).is_symlink() else (copied / "lib.so").unlink()
        shutil.move(copied.parent / "lib.so", copied / "lib.so")
    (copied / "more").touch()
    assert refused(copied)[1] == f"{copied}/more: does not belong to this artifact"


def test_a_changed_manifest(copied):
    file = copied / "manifest.json"
    text = file.read_text()
    for changed in (
        text.replace('"mcpu"', '"mcpv"'),
        text.replace("[\n", "[ \n", 1).replace("4", "5", 1),
        text[: len(text) // 2],
        "",
        "[]",
        "{}",
        "null",
        text.replace("{", "{{", 1),
        text + "}",
        "[" * 200_000,
        '{"a":' * 200_000,
    ):
        file.write_text(changed)
        assert str(file) in refused(copied)[1]


CHANGES = {
    "format": lambda m: m.update(functions=None),
    "no main": lambda m: m["functions"].pop("main"),
    "other tvm": lambda m: m["versions"].update(tvm="0.26.0"),
    "other ffi": lambda m: m["versions"].update(tvm_ffi="0.1.0"),
    "no versions": lambda m: m.pop("versions"),
    "a later runtime": lambda m: m.update(requires={"needle_runtime": "99.0"}),
    "a malformed runtime": lambda m: m.update(requires={"needle_runtime": "x"}),
    "features": lambda m: m["target"].update(features=["sse99"]),
    "dtype": lambda m: m["functions"]["main"]["inputs"][0].update(dtype="float31"),
    "negative extent": lambda m: m["functions"]["main"]["inputs"][0].update(shape=[-4, 16]),
    "unknown dim": lambda m: m["functions"]["main"]["inputs"][0].update(shape=["k", 16]),
    "state": lambda m: m["functions"]["main"].update(state=["x"]),
    "inputs": lambda m: m["functions"]["main"].update(inputs=3),
    "no weights of that name": lambda m: m["functions"]["main"]["params"][0].update(name="w"),
    "weights of another shape": lambda m: m["functions"]["main"]["params"][0].update(shape=[9, 9]),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_rewritten_manifest(copied, change):
    """Its digest is right, as an attacker or a faulty program would write it."""
    manifest = read_manifest(copied)
    change(manifest)
    write_manifest(copied, manifest)
    try:
        needle_runtime.load(copied)
    except ArtifactError:
        wanted = {Status.ARTIFACT}
    except TargetError:
        wanted = {Status.TARGET}
    except Exception as error:
        assert type(error).__name__ == "ParameterError", error
        wanted = {Status.ARTIFACT, Status.WEIGHTS}
    with pytest.raises(Failed) as raised:
        Program(copied)
    assert raised.value.status in wanted, raised.value


def test_numbers_that_python_has_no_need_to_refuse(copied):
    """Here they would be sizes and indices of memory."""
    manifest = read_manifest(copied)
    main = manifest["functions"]["main"]
    for name, value in [
        ("shape", [2**62, 2**62]),
        ("shape", [2**63 - 1, 0, 2]),
        ("shape", [2**63]),
    ]:
        before, main["inputs"][0][name] = main["inputs"][0][name], value
        write_manifest(copied, manifest)
        with pytest.raises(Failed, match="is not an artifact's manifest") as raised:
            Program(copied)
        assert raised.value.status == Status.ARTIFACT
        main["inputs"][0][name] = before
    for pair in ([0, 9], [9, 0], [0, -1], [-1, 0], [0, 2**40]):
        main["in_place"] = [pair]
        write_manifest(copied, manifest)
        with pytest.raises(Failed, match="is not an artifact's manifest"):
            Program(copied)


def test_text_of_any_language(copied):
    manifest = read_manifest(copied)
    manifest["note"] = 'größer: "\\", \t, \u2028, \U0001f9f5'
    write_manifest(copied, manifest)
    assert Program(copied)(np.ones((4, 16), np.float32))[0].shape == (4, 5)


def test_signatures(copied, tmp_path):
    pytest.importorskip("cryptography", reason="signatures need the [sign] extra")
    key = tmp_path / "key"
    public = signature.generate(key)
    other = signature.generate(tmp_path / "other")
    try:
        Program(copied, public)
    except Failed as failed:
        if "libsodium" in str(failed):
            pytest.skip(str(failed))
    assert refused(copied, public)[1] == f"{copied}: is not signed (manifest.sig is missing)"
    write_manifest(copied, read_manifest(copied), sign=key)
    assert Program(copied, public)(np.ones((4, 16), np.float32))[0].shape == (4, 5)
    assert Program(copied)
    assert "is not what the owner of" in refused(copied, other)[1]
    assert "is a private key" in refused(copied, key)[1]
    (tmp_path / "garbage").write_text(
        "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"
    )
    for wrong in (tmp_path / "garbage", tmp_path / "missing", copied / "lib.so", tmp_path):
        refused(copied, wrong)
    signed = (copied / "manifest.sig").read_bytes()
    for bad in (signed + b"\0", signed[:-1], bytes([signed[0] ^ 1]) + signed[1:], b"", bytes(64)):
        (copied / "manifest.sig").write_bytes(bad)
        refused(copied, public)
    (copied / "manifest.sig").write_bytes(signed)
    write_manifest(copied, read_manifest(copied))  # without a signature again
    (copied / "manifest.sig").write_bytes(signed)
    assert Program(copied, public)  # the same bytes
    write_manifest(copied, {**read_manifest(copied), "note": 1})
    (copied / "manifest.sig").write_bytes(signed)
    assert "is not what the owner of" in refused(copied, public)[1]


def test_random_faults(copied):
    """Every bit of an artifact counts."""
    draw = random.Random(0)
    files = sorted(copied.iterdir())
    for _ in range(200):
        file = draw.choice(files)
        whole = file.read_bytes()
        bad = bytearray(whole)
        bad[draw.randrange(len(bad))] ^= 1 << draw.randrange(8)
        file.write_bytes(bad)
        with pytest.raises(Failed) as raised:
            Program(copied)
        assert raised.value.status in (Status.ARTIFACT, Status.TARGET)
        file.write_bytes(whole)
    assert Program(copied)


@pytest.mark.parametrize("version", sorted(path.name for path in KEPT.iterdir()))
def test_artifacts_of_earlier_versions_run(version):
    folder = KEPT / version
    if Artifact.open(folder / "reader").obstacle is not None:
        pytest.skip("this processor is of another architecture")
    x = np.ones((5, 6), np.float32)
    assert (Program(folder / "reader")(x)[0] == needle_runtime.load(folder / "reader")(x)).all()
    step, wanted = Program(folder / "step"), np.load(folder / "step.npz")
    losses = [float(step(wanted["x"], wanted["y"])[0]) for _ in wanted["losses"]]
    assert losses == wanted["losses"].tolist()


def test_descriptors_are_closed(models, copied):
    def count():
        return len(os.listdir("/proc/self/fd"))

    Program(models / "mlp")
    before = count()
    (copied / "more").touch()
    for _ in range(10):
        Program(models / "mlp")
        with pytest.raises(Failed):
            Program(copied)
    assert count() == before


CHILD = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.needle_error.restype = ctypes.c_char_p
program = ctypes.c_void_p()
status = library.needle_open(sys.argv[2].encode(), None, ctypes.byref(program))
print(status, library.needle_error().decode())
"""


def child(models, **variables):
    """What needle_open returns in a process of its own."""
    command = [sys.executable, "-I", "-c", CHILD, prefix() / "lib" / "libneedle_runtime.so"]
    done = subprocess.run(
        [*map(str, command), str(models / "mlp")],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_bad_number_of_threads_is_named(models):
    assert child(models, NEEDLE_NUM_THREADS="2") == "0"
    found = child(models, NEEDLE_NUM_THREADS="many")
    assert found.startswith(f"{Status.USAGE:d} ") and "NEEDLE_NUM_THREADS" in found
