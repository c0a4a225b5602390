"""Signatures of artifacts: made and checked with keys that OpenSSL understands too."""

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import needle_runtime
import needle_tvm
from needle_runtime.artifact import Artifact, artifact, layout, signature
from needle_runtime.artifact.files import sha256
from needle_runtime.errors import ArtifactError, InstallError, KeyFileError, SignatureError
from tests.needle_tvm.conftest import make_mlp, tensor

pytest.importorskip("cryptography", reason="signatures need the [sign] extra")


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    private = tmp_path_factory.mktemp("keys") / "key"
    return private, signature.generate(private)


@pytest.fixture(scope="module")
def executable():
    return needle_tvm.compile(make_mlp(8, 4), tensor(np.ones((2, 8), np.float32)), stage="fused")


@pytest.fixture(scope="module")
def original(executable, keys, tmp_path_factory):
    return executable.export(tmp_path_factory.mktemp("signed") / "mlp", sign=keys[0])


@pytest.fixture
def signed(original, tmp_path):
    return Path(shutil.copytree(original, tmp_path / "signed"))


@pytest.fixture
def no_dlopen(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a library was loaded before it was verified")

    monkeypatch.setattr("needle_runtime.executor.load_library", refuse)


def test_a_signed_artifact_loads_with_its_key_and_without(signed, keys):
    x = np.ones((2, 8), np.float32)
    want = needle_runtime.load(signed)(x)
    np.testing.assert_array_equal(needle_runtime.load(signed, require_signature=keys[1])(x), want)
    loaded = needle_tvm.load(signed, require_signature=keys[1])
    np.testing.assert_array_equal(loaded(x).numpy(), want)


def test_the_signature_covers_every_file(signed):
    manifest = json.loads((signed / layout.MANIFEST).read_text())
    names = {path.name for path in signed.iterdir()} - {layout.MANIFEST, layout.SIGNATURE}
    assert set(manifest["files"]) == names
    for name in names:
        recorded = manifest["files"][name]
        assert recorded["size"] == (signed / name).stat().st_size
        assert recorded["sha256"] == sha256(signed / name)


def test_openssl_agrees(signed, keys, tmp_path):
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")

    def openssl(*arguments):
        done = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True)
        if "ED25519" in done.stderr or "rawin" in done.stderr:
            pytest.skip("this openssl has no Ed25519")
        return done

    common = ("-rawin", "-in", signed / layout.MANIFEST)
    found = signed / layout.SIGNATURE
    done = openssl("pkeyutl", "-verify", "-pubin", "-inkey", keys[1], *common, "-sigfile", found)
    assert done.returncode == 0, done.stderr
    own, public = tmp_path / "own.pem", tmp_path / "public.pem"
    assert openssl("genpkey", "-algorithm", "ed25519", "-out", own).returncode == 0
    assert openssl("pkey", "-in", own, "-pubout", "-out", public).returncode == 0
    artifact.sign(signed, own)
    Artifact.open(signed, public)
    with pytest.raises(SignatureError):
        Artifact.open(signed, keys[1])


def test_an_unsigned_artifact_is_refused(signed, keys, no_dlopen):
    (signed / layout.SIGNATURE).unlink()
    with pytest.raises(SignatureError, match=r"is not signed \(manifest.sig is missing\)"):
        needle_tvm.load(signed, require_signature=keys[1])


def test_another_key_is_refused_by_name(signed, no_dlopen, tmp_path):
    public = signature.generate(tmp_path / "other")
    with pytest.raises(SignatureError, match=r"not what the owner of .*other\.pub signed"):
        needle_tvm.load(signed, require_signature=public)


def test_a_signature_of_another_length_is_refused_without_a_key_too(signed, no_dlopen):
    (signed / layout.SIGNATURE).write_bytes(bytes(63))
    with pytest.raises(SignatureError, match="a signature has 64 bytes"):
        needle_tvm.load(signed)


def test_a_pipe_for_a_file_is_refused(signed, no_dlopen):
    """Reading it would wait for ever."""
    for name in (layout.MANIFEST, layout.SIGNATURE, layout.LIBRARY):
        copy = shutil.copytree(signed, signed.parent / name)
        (copy / name).unlink()
        os.mkfifo(copy / name)
        with pytest.raises(ArtifactError, match=rf"{name}.*not a regular file"):
            needle_tvm.load(copy)


def test_signing_in_place(executable, keys, tmp_path):
    path = executable.export(tmp_path / "plain")
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    artifact.sign(path, keys[0])
    after = {file.name: file.read_bytes() for file in path.iterdir()}
    assert len(after.pop(layout.SIGNATURE)) == signature.LENGTH
    assert after == before  # a signature is beside what it signs
    Artifact.open(path, keys[1])
    executable.export(path)
    assert not (path / layout.SIGNATURE).exists()
    (path / layout.PARAMS).write_bytes(b"damage")
    with pytest.raises(ArtifactError, match="is damaged"):
        artifact.sign(path, keys[0])


# Keys


def test_a_private_key_is_its_owners_alone_and_never_overwritten(tmp_path):
    public = signature.generate(tmp_path / "key")
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert public == tmp_path / "key.pub"
    before = (tmp_path / "key").read_bytes(), public.read_bytes()
    with pytest.raises(KeyFileError, match=r"key: exists; a key is never overwritten"):
        signature.generate(tmp_path / "key")
    (tmp_path / "key").rename(tmp_path / "elsewhere")
    with pytest.raises(KeyFileError, match=r"key\.pub: exists"):
        signature.generate(tmp_path / "key")
    assert not (tmp_path / "key").exists()
    assert ((tmp_path / "elsewhere").read_bytes(), public.read_bytes()) == before
    with pytest.raises(KeyFileError, match=r"cannot be written \(No such file"):
        signature.generate(tmp_path / "missing" / "key")


def test_files_that_are_no_such_key_are_refused(signed, keys, tmp_path):
    from cryptography.hazmat.primitives import serialization as forms
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519

    def pem(name, key, password=forms.NoEncryption()):  # noqa: B008
        path = tmp_path / name
        path.write_bytes(key.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.PKCS8, password))
        return path

    curve = ec.generate_private_key(ec.SECP256R1())
    (tmp_path / "curve.pub").write_bytes(
        curve.public_key().public_bytes(forms.Encoding.PEM, forms.PublicFormat.SubjectPublicKeyInfo)
    )
    (tmp_path / "text").write_text("not a key")
    locked = pem(
        "locked", ed25519.Ed25519PrivateKey.generate(), forms.BestAvailableEncryption(b"x")
    )
    for path, message in (
        (tmp_path / "absent", "cannot be read"),
        (tmp_path / "text", "is not a private key in PEM form"),
        (keys[1], "is not a private key in PEM form"),
        (pem("curve", curve), "is not an Ed25519 key"),
        (locked, "is encrypted"),
    ):
        with pytest.raises(KeyFileError, match=message):
            artifact.sign(signed, path)
    for path, message in (
        (tmp_path / "absent", "cannot be read"),
        (tmp_path / "text", "is not a public key in PEM form"),
        (keys[0], "is a private key; the public one is needed"),
        (tmp_path / "curve.pub", "is not an Ed25519 key"),
    ):
        with pytest.raises(KeyFileError, match=message):
            Artifact.open(signed, path)
    Artifact.open(signed, keys[1])


def test_without_the_library_signatures_are_refused_by_name(signed, keys, monkeypatch, tmp_path):
    for name in [name for name in sys.modules if name.split(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    Artifact.open(signed)
    for use in (
        lambda: Artifact.open(signed, keys[1]),
        lambda: artifact.sign(signed, keys[0]),
        lambda: signature.generate(tmp_path / "key"),
    ):
        with pytest.raises(InstallError, match=r"package cryptography .*needle-runtime\[sign\]"):
            use()
