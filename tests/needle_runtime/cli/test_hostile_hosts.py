"""Closed and full streams, pipes for files, small files of large arrays, folders that are gone."""

import gzip
import os
import shlex
import struct
import subprocess
import sys
import tracemalloc
import zipfile

import numpy as np
import pytest

import needle as ndl
import needle.onnx
import needle_tvm
from needle.data.mnist import read_idx
from needle_runtime.artifact import signature
from needle_runtime.errors import KeyFileError, UsageError
from needle_tvm.__main__ import main
from tests.needle_tvm.conftest import make_mlp, tensor


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    model = needle_tvm.compile(make_mlp(8, 4), tensor(np.ones((2, 8), np.float32)), stage="noopt")
    return model.export(tmp_path_factory.mktemp("exported") / "mlp")


def shell(text, **options):
    text = text.replace("needle_tvm", f"{shlex.quote(sys.executable)} -m needle_tvm", 1)
    return subprocess.run(["sh", "-c", text], capture_output=True, text=True, timeout=60, **options)


def one_line(done, *codes):
    assert done.returncode in codes and "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= 1, done.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
@pytest.mark.parametrize("command", ["inspect {}", "verify {} --json", "run {} --random"])
def test_closed_streams_are_as_if_to_nowhere(exported, command, closed):
    done = shell(f"needle_tvm {command.format(exported)} {closed}")
    assert (done.returncode, done.stderr) == (0, "")
    assert bool(done.stdout) is (">&-" not in closed.replace("2>&-", ""))
    one_line(shell(f"needle_tvm {command.format('nowhere')} {closed}"), 1)
    one_line(shell(f"needle_tvm {command.format(exported)} --nothing {closed}"), 2)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
@pytest.mark.parametrize("command", ["inspect {}", "inspect {} --json", "verify {}"])
def test_a_full_disk_for_output_is_one_line(exported, command):
    done = shell(f"needle_tvm {command.format(exported)} > /dev/full")
    one_line(done, 1)
    assert "No space left on device" in done.stderr


def test_a_folder_that_is_gone_is_one_line_or_no_matter(exported, tmp_path):
    root = os.path.dirname(os.path.dirname(needle_tvm.__file__))
    env = {**os.environ, "PYTHONPATH": root}
    for command, code in (
        (f"verify {exported}", 0),
        ("verify mlp", 1),
        (f"run {exported} --random --out here.npz", 2),
        ("sign mlp --key k", 1),
        ("records list --db here", 1),
        ("inspect m.onnx", 1),
    ):
        gone = tmp_path / "gone"
        gone.mkdir()
        done = shell(f"rmdir {gone}; needle_tvm {command}", cwd=gone, env=env)
        one_line(done, code, 2)


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors"])
def test_a_pipe_for_arrays_is_refused(exported, tmp_path, suffix):
    os.mkfifo(tmp_path / f"x{suffix}")
    done = shell(f"needle_tvm run {exported} {tmp_path}/x{suffix}")
    one_line(done, 1)
    assert "not a regular file" in done.stderr


READERS = {
    "needle.load": (ndl.load, OSError),
    "needle.onnx.load": (needle.onnx.load, OSError),
    "read_idx": (lambda path: read_idx(path, 1), OSError),
    "a key": (lambda path: signature.is_signed_by(b"", b"", path), KeyFileError),
    "compile_onnx": (needle_tvm.compile_onnx, (OSError, UsageError)),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_pipe_is_not_waited_for(tmp_path, reader):
    pytest.importorskip("cryptography")
    pytest.importorskip("onnx")
    os.mkfifo(tmp_path / "x.onnx")
    read, errors = READERS[reader]
    with pytest.raises(errors, match="not a regular file"):
        read(tmp_path / "x.onnx")


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_what_can_be_no_name_of_a_file(name):
    pytest.importorskip("onnx")
    for read in (needle.onnx.load, needle_tvm.compile_onnx, ndl.load):
        with pytest.raises((OSError, ValueError), match=r"no file can have this name|has a NUL"):
            read(name)
    with pytest.raises(UsageError, match=r"must be a str of ASCII|no processor named"):
        x = tensor(np.ones((2, 8), np.float32))
        needle_tvm.compile(make_mlp(8, 4), x, target={"kind": "llvm", "mcpu": name})


def bomb(path, shape):
    """An .npz file of a few MB that holds zeros of this shape."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("x.npy", "w", force_zip64=True) as part:
            header = {"descr": "<f4", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(part, header)
            for _ in range(int(np.prod(shape)) * 4 >> 24):
                part.write(bytes(1 << 24))
    return path


def test_arrays_of_another_shape_are_not_read(exported, tmp_path, capsys):
    path = bomb(tmp_path / "x.npz", (1 << 26,))
    assert path.stat().st_size < 1 << 20
    tracemalloc.start()
    try:
        assert main(["run", str(exported), str(path)]) == 1
        assert tracemalloc.get_traced_memory()[1] < 32 << 20  # and not 256 MiB
    finally:
        tracemalloc.stop()
    assert "input 'x' is float32(67108864), but the model" in capsys.readouterr().err


def test_a_header_of_an_array_is_not_read_without_end(exported, tmp_path):
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(
            "x.npy", b"\x93NUMPY\x02\x00" + struct.pack("<I", 1 << 28) + bytes(1 << 28)
        )
    done = shell(f"needle_tvm run {exported} {path}")
    one_line(done, 1)
    assert "its header has 268435456 bytes" in done.stderr


def test_a_gzip_file_is_unpacked_as_far_as_its_header_says(tmp_path):
    head = b"\0\0\x08\x01" + (3).to_bytes(4, "big")
    (tmp_path / "labels").write_bytes(gzip.compress(head + bytes(1 << 26)))
    with pytest.raises(ValueError, match="too long: 12 bytes, but shape"):
        read_idx(tmp_path / "labels", 1)
