"""Exported models run without needle and TVM's compiler, or are refused before they are loaded."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import needle as ndl
import needle_runtime
import needle_tvm
from needle_runtime.artifact import Artifact, layout
from needle_runtime.artifact.manifest import write_manifest
from needle_runtime.errors import ArtifactError, InputError, TargetError
from tests.needle_tvm.conftest import tensor


def test_runs_where_needle_and_the_compiler_cannot_be_imported(exported, model, array, tmp_path):
    np.save(tmp_path / "x.npy", array)
    code = (
        "import sys\n"
        "for name in ('needle', 'tvm', 'torch'):\n"
        "    sys.modules[name] = None\n"
        "import numpy as np\n"
        "import needle_runtime\n"
        "program = needle_runtime.load(sys.argv[1])\n"
        "assert needle_runtime.self_test(program).passed\n"
        "np.save(sys.argv[2] + '/y.npy', program(np.load(sys.argv[2] + '/x.npy')))\n"
    )
    command = [sys.executable, "-c", code, str(exported), str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    want = model(tensor(array)).numpy()
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), want, rtol=1e-5, atol=1e-5)


def test_load_gives_back_what_was_exported(exported, model, array, tmp_path):
    loaded = needle_tvm.load(exported)
    result = loaded(tensor(array))
    assert isinstance(result, ndl.Tensor)
    np.testing.assert_allclose(result.numpy(), model(tensor(array)).numpy(), rtol=1e-5, atol=1e-5)
    again = needle_tvm.load(loaded.export(tmp_path / "again"))
    np.testing.assert_array_equal(again(array).numpy(), result.numpy())


def test_the_manifest_says_what_the_library_is(exported):
    manifest = Artifact.open(exported).manifest
    main = manifest["functions"]["main"]
    assert main["inputs"] == [{"name": "x", "shape": [4, 16], "dtype": "float32"}]
    assert main["outputs"] == [{"shape": [4, 5], "dtype": "float32"}]
    assert [spec["name"] for spec in main["params"]] == [
        "modules.0.weight", "modules.0.bias", "modules.2.weight", "modules.2.bias"
    ]  # fmt: skip
    assert manifest["target"]["kind"] == "llvm" and manifest["target"]["mcpu"] != "host"
    assert {"needle", "tvm", "tvm_ffi", "llvm"} <= set(manifest["versions"])
    assert set(manifest["files"]) == {path.name for path in exported.iterdir()} - {"manifest.json"}


# Errors before anything is loaded


@pytest.fixture
def no_dlopen(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a library was loaded before it was verified")

    monkeypatch.setattr("needle_runtime.executor.load_library", refuse)


FILES = [layout.LIBRARY, layout.SCRIPT, layout.PARAMS, layout.GOLDEN, layout.MANIFEST]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("percent", [0, 1, 37, 50, 99])
def test_a_truncated_file_is_refused(copied, no_dlopen, name, percent):
    data = (copied / name).read_bytes()
    (copied / name).write_bytes(data[: len(data) * percent // 100])
    with pytest.raises(ArtifactError, match=name):
        needle_tvm.load(copied)


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_is_refused(copied, no_dlopen, name, rng):
    data = (copied / name).read_bytes()
    for _ in range(20):
        position, bit = int(rng.integers(len(data))), int(rng.integers(8))
        flipped = bytearray(data)
        flipped[position] ^= 1 << bit
        if name == layout.MANIFEST and _same_json(data, bytes(flipped)):
            continue
        (copied / name).write_bytes(bytes(flipped))
        with pytest.raises(ArtifactError, match=name):
            needle_tvm.load(copied)


def _same_json(one, other):
    try:
        return json.loads(one) == json.loads(other)
    except ValueError:
        return False


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_refused(copied, no_dlopen, name):
    (copied / name).unlink()
    with pytest.raises(ArtifactError, match=f"{name}.*missing"):
        needle_tvm.load(copied)


def test_an_added_file_is_refused(copied, no_dlopen):
    (copied / "more.so").write_bytes(b"")
    with pytest.raises(ArtifactError, match=r"more\.so: does not belong"):
        needle_tvm.load(copied)


def test_what_is_no_artifact_is_refused(tmp_path, no_dlopen):
    with pytest.raises(ArtifactError, match="no artifact there"):
        needle_tvm.load(tmp_path / "nothing")
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(ArtifactError, match="not an artifact's manifest"):
        needle_tvm.load(tmp_path)


def reseal(path, **changes):
    manifest = json.loads((path / layout.MANIFEST).read_text())
    for name, value in changes.items():
        manifest[name] = {**manifest[name], **value} if isinstance(value, dict) else value
    write_manifest(path, manifest)


def test_a_processor_without_the_features_is_refused_by_name(copied, no_dlopen):
    reseal(copied, target={"features": ["avx512f", "amx-tile", "sve"], "mcpu": "future"})
    with pytest.raises(TargetError, match=r"compiled for future; this one lacks .*sve"):
        needle_tvm.load(copied)


@pytest.mark.parametrize("name", ["tvm", "tvm_ffi"])
def test_another_tvm_is_refused_by_name(copied, no_dlopen, name):
    reseal(copied, versions={name: "0.1"})
    with pytest.raises(ArtifactError, match=f"built with {name} 0.1, but"):
        needle_tvm.load(copied)


# Inputs


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            np.zeros((4, 17), np.float32),
            r"'x' is float32\(4, 17\), .*compiled for float32\(4, 16\)",
        ),
        (np.zeros((0, 16), np.float32), r"float32\(0, 16\)"),
        (np.zeros((4, 16), np.float64), r"float64\(4, 16\)"),
        (np.zeros((4, 16), ">f4"), r">f4\(4, 16\)"),
        ([[0.0] * 16] * 4, r"float64\(4, 16\)"),
        ("text", r"'x' is "),
        (None, "'x' is None"),
    ],
)
def test_an_input_that_does_not_fit_is_refused_by_name(exported, wrong, message):
    with pytest.raises(InputError, match=message):
        needle_tvm.load(exported)(wrong)


def test_the_number_of_inputs_is_checked(exported, array):
    loaded = needle_tvm.load(exported)
    with pytest.raises(InputError, match="'x' is missing"):
        loaded()
    with pytest.raises(InputError, match="was given 2"):
        loaded(array, array)


def test_awkward_memory_is_copied_and_right(exported, array):
    program = needle_runtime.load(exported)
    want = program(array)
    raw = np.zeros(array.nbytes + 64, np.uint8)
    for offset in (1, 4, 32):
        misaligned = raw[offset : offset + array.nbytes].view(np.float32).reshape(array.shape)
        misaligned[...] = array
        np.testing.assert_array_equal(program(misaligned), want)
    np.testing.assert_array_equal(program(np.asfortranarray(array)), want)
    np.testing.assert_array_equal(program(np.repeat(array, 2, axis=1)[:, ::2]), want)
    reversed_rows = array[::-1].copy()[::-1]
    np.testing.assert_array_equal(program(reversed_rows), want)
    frozen = array.copy()
    frozen.flags.writeable = False
    np.testing.assert_array_equal(program(frozen), want)
    np.testing.assert_array_equal(program(x=array), want)


def test_dlpack_inputs_are_taken(exported, array):
    torch = pytest.importorskip("torch")
    loaded = needle_tvm.load(exported)
    want = loaded(array).numpy()
    np.testing.assert_array_equal(loaded(torch.from_numpy(array.copy())).numpy(), want)


def test_results_do_not_share_memory(exported, array):
    program = needle_runtime.load(exported)
    first = program(array)
    kept = first.copy()
    program(array * 2)
    np.testing.assert_array_equal(first, kept)


def test_threads_get_the_same_bits(exported, array):
    program = needle_runtime.load(exported)
    arrays = [array * scale for scale in range(1, 17)]
    want = [program(a) for a in arrays]
    with ThreadPoolExecutor(16) as pool:
        for have, expected in zip(pool.map(program, arrays * 8), want * 8, strict=True):
            np.testing.assert_array_equal(have, expected)


THREADS = """
import gc, sys, threading
import numpy as np
import psutil
import needle_runtime

program = needle_runtime.load(sys.argv[1])
calls = int(sys.argv[2])
rng = np.random.default_rng(0)
arrays = [rng.standard_normal((4, 16)).astype(np.float32) for _ in range(16)]
want = [program(array) for array in arrays]
wrong = []

def work(number):
    for _ in range(calls):
        if program(arrays[number]).tobytes() != want[number].tobytes():
            wrong.append(number)

def round_of_threads():
    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    return psutil.Process().memory_info().rss, psutil.Process().num_threads()

found = [round_of_threads() for _ in range(6)]
memory, threads = zip(*found)
assert not wrong, wrong
assert threads[-1] < 16, threads  # the pools of the threads that ended have ended too
# The first rounds bring the allocators to their size; after them a call leaves nothing behind.
assert memory[-1] - memory[1] < 4 << 20, memory
"""


@pytest.mark.parametrize("calls", [50, pytest.param(1000, marks=pytest.mark.long)])
def test_many_threads_get_the_same_bits_and_memory_stays_flat(exported, calls):
    pytest.importorskip("psutil")
    command = [sys.executable, "-c", THREADS, str(exported), str(calls)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
