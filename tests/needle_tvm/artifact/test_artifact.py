"""Exported models run without needle and TVM's compiler, or are refused before they are loaded."""

import errno
import json
import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import needle as ndl
import needle_tvm
from needle import nn
from needle_tvm import runtime
from needle_tvm.artifact import Artifact, artifact, layout
from needle_tvm.artifact.manifest import read_manifest, write_manifest
from needle_tvm.artifact.tolerance import relative_difference
from needle_tvm.errors import ArtifactError, InputError, ParameterError, TargetError, UsageError
from needle_tvm.process import atomic
from tests.needle_tvm.conftest import make_mlp, tensor


@pytest.fixture(scope="module")
def model():
    return make_mlp(16, 20, 5)


@pytest.fixture(scope="module")
def array():
    return np.random.default_rng(3).standard_normal((4, 16)).astype(np.float32)


@pytest.fixture(scope="module")
def exported(model, array, tmp_path_factory):
    path = tmp_path_factory.mktemp("exported") / "mlp"
    needle_tvm.compile(model, tensor(array), stage="tuned").export(path)
    return path


@pytest.fixture
def copied(exported, tmp_path):
    return Path(shutil.copytree(exported, tmp_path / "copy"))


def test_runs_where_needle_and_the_compiler_cannot_be_imported(exported, model, array, tmp_path):
    np.save(tmp_path / "x.npy", array)
    code = (
        "import sys\n"
        "for name in ('needle', 'tvm', 'torch'):\n"
        "    sys.modules[name] = None\n"
        "import numpy as np\n"
        "from needle_tvm import runtime\n"
        "program = runtime.load(sys.argv[1])\n"
        "assert runtime.self_test(program).passed\n"
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

    monkeypatch.setattr("needle_tvm.runtime.executor.load_library", refuse)


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
    with pytest.raises(ArtifactError, match=f"built with {name} 0.1, here is"):
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
    program = runtime.load(exported)
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
    program = runtime.load(exported)
    first = program(array)
    kept = first.copy()
    program(array * 2)
    np.testing.assert_array_equal(first, kept)


def test_threads_get_the_same_bits(exported, array):
    program = runtime.load(exported)
    arrays = [array * scale for scale in range(1, 17)]
    want = [program(a) for a in arrays]
    with ThreadPoolExecutor(16) as pool:
        for have, expected in zip(pool.map(program, arrays * 8), want * 8, strict=True):
            np.testing.assert_array_equal(have, expected)


THREADS = """
import gc, sys, threading
import numpy as np
import psutil
from needle_tvm import runtime

program = runtime.load(sys.argv[1])
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


# The golden example


def test_the_golden_outputs_are_the_eager_models(exported, model, array):
    golden = load_file(exported / layout.GOLDEN)
    np.testing.assert_array_equal(golden["input.0"], array)
    np.testing.assert_array_equal(golden["output.0"], model(tensor(array)).numpy())
    test = runtime.self_test(runtime.load(exported))
    assert test.passed and test.source == "eager"
    assert 0 < test.tolerances[0] < 1e-3


def test_the_golden_outputs_follow_the_weights(array, tmp_path):
    model = make_mlp(16, 5)
    executable = needle_tvm.compile(model, tensor(array), stage="fused")
    before = model(tensor(array)).numpy()
    executable.export(tmp_path / "old")
    np.testing.assert_array_equal(load_file(tmp_path / "old" / layout.GOLDEN)["output.0"], before)
    model.modules[0].weight.data = model.modules[0].weight.data * 2  # which the executable follows
    executable.export(tmp_path / "new")
    after = load_file(tmp_path / "new" / layout.GOLDEN)["output.0"]
    np.testing.assert_array_equal(after, model(tensor(array)).numpy())
    assert not np.array_equal(before, after)

    loaded = needle_tvm.load(tmp_path / "old")
    assert loaded.export(tmp_path / "again")  # unchanged: the same bytes
    for file in (tmp_path / "old").iterdir():
        assert (tmp_path / "again" / file.name).read_bytes() == file.read_bytes()
    loaded.set_params(model.state_dict())  # a loaded artifact does not follow the model
    loaded.export(tmp_path / "other")
    for name, source in (("old", "eager"), ("new", "eager"), ("other", "compiled")):
        test = runtime.self_test(runtime.load(tmp_path / name))
        assert (test.passed, test.source) == (True, source)


def test_constants_integers_and_shared_results_are_in_the_golden_example(array, tmp_path):
    class Mixed(nn.Module):
        def forward(self, x, index):
            y = x * ndl.Tensor(np.arange(16, dtype=np.float32), requires_grad=False)
            return y, y, index, ndl.ops.exp(y * 0.1)

    inputs = tensor(array), tensor(np.array([3, 1], np.int64))
    executable = needle_tvm.compile(Mixed().eval(), *inputs, stage="fused")
    program = runtime.load(executable.export(tmp_path / "out"))
    stored = load_file(tmp_path / "out" / layout.GOLDEN)
    assert stored["output.2"].dtype == np.int64 and stored["output.2"].tolist() == [3, 1]
    np.testing.assert_array_equal(stored["output.1"], array * np.arange(16, dtype=np.float32))
    test = runtime.self_test(program)
    assert test.passed and len(test.differences) == 4


@pytest.mark.parametrize(
    ("found", "difference"),
    [
        ([1.0, 2.0, np.nan, np.inf], 0.0),
        ([1.0, 1.0, np.nan, np.inf], 0.5),
        ([1.0, np.nan, np.nan, np.inf], np.inf),
        ([1.0, 2.0, 3.0, np.inf], np.inf),
        ([1.0, 2.0, np.nan, -np.inf], np.inf),
        ([1.0, np.inf, np.nan, np.inf], np.inf),
        ([1.0, 2.0], np.inf),
    ],
)
def test_differences_see_nans_and_infinities(found, difference):
    expected = np.array([1.0, 2.0, np.nan, np.inf])
    assert relative_difference(expected, np.array(found)) == difference


def test_differences_of_integers_and_of_nothing():
    assert relative_difference(np.array([1, 2]), np.array([1, 2])) == 0
    assert relative_difference(np.array([1, 2]), np.array([1, 3])) == np.inf
    assert relative_difference(np.zeros((0, 3)), np.zeros((0, 3))) == 0
    assert relative_difference(np.zeros(2), np.zeros(2, np.float32)) == np.inf


# Weights


def test_weights_that_do_not_fit_are_all_listed(exported, model, array):
    program = runtime.load(exported)
    want = program(array)
    params = {name: value.numpy() for name, value in model.state_dict().items()}
    params["modules.0.weight"] = params["modules.0.weight"][:, :-1]
    params["modules.0.bias"] = params["modules.0.bias"].astype(np.float64)
    params["extra"] = params.pop("modules.2.bias")
    with pytest.raises(ParameterError) as caught:
        program.set_params(params)
    for part in (
        "unexpected 'extra'",
        "missing 'modules.2.bias'",
        r"float32(16, 19), not float32(16, 20)",
        "float64(1, 20)",
    ):
        assert part in str(caught.value)
    np.testing.assert_array_equal(program(array), want)


# Writing


def test_export_replaces_an_artifact_and_nothing_else(exported, array, tmp_path):
    loaded = needle_tvm.load(exported)
    target = tmp_path / "out"
    loaded.export(target)
    before = read_manifest(target)["digest"]
    loaded.export(target)
    assert read_manifest(target)["digest"] == before
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("years of work")
    with pytest.raises(ArtifactError, match="not an artifact; it was not touched"):
        loaded.export(precious)
    assert (precious / "thesis.txt").read_text() == "years of work"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "precious"]


@pytest.mark.parametrize("failing", ["write_bytes", "fsync", "rename"])
def test_a_full_disk_leaves_nothing_half_written(exported, tmp_path, monkeypatch, failing):
    loaded = needle_tvm.load(exported)
    target = tmp_path / "out"
    loaded.export(target)
    before = {path.name: path.read_bytes() for path in target.iterdir()}

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os if failing == "fsync" else Path, failing, full)
        if failing == "rename":
            patch.setattr(atomic, "_exchange", full)
        with pytest.raises(ArtifactError, match=r"cannot be written .*No space left"):
            loaded.export(target)
        with pytest.raises(ArtifactError, match=r"cannot be written .*No space left"):
            loaded.export(tmp_path / "new")
    assert {path.name: path.read_bytes() for path in target.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_disk_that_really_is_full(exported, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=40k", "tmpfs", str(small)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting is not allowed here")
    try:
        with pytest.raises(ArtifactError, match=r"cannot be written .*No space left"):
            needle_tvm.load(exported).export(small / "out")
        assert list(small.iterdir()) == []
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_another_model_exported_to_the_same_path_is_what_is_loaded(array, tmp_path):
    """The dynamic loader would reuse what it loaded under that name before."""
    for width in (3, 4):
        model = make_mlp(16, width)
        needle_tvm.compile(model, tensor(array), stage="fused").export(tmp_path / "out")
        result = needle_tvm.load(tmp_path / "out")(array).numpy()
        np.testing.assert_allclose(result, model(tensor(array)).numpy(), rtol=1e-5, atol=1e-5)


def test_nested_results_keep_their_structure(tmp_path, array):
    class Nested(nn.Module):
        def forward(self, x, pair, scale=2.0):
            return {"sum": x + pair[0], "parts": [pair[1] * scale, (x,)]}

    model = Nested()
    model.eval()
    args = (tensor(array), (tensor(array), tensor(array)))
    path = needle_tvm.compile(model, *args, stage="fused").export(tmp_path / "nested")
    result = runtime.load(path)(array, (array, array))
    assert set(result) == {"sum", "parts"}
    assert isinstance(result["parts"], list) and isinstance(result["parts"][1], tuple)
    np.testing.assert_allclose(result["sum"], array * 2)
    np.testing.assert_allclose(result["parts"][0], array * 2)


def test_everyone_may_read_what_the_umask_lets_them(exported, tmp_path):
    loaded = needle_tvm.load(exported)
    before = os.umask(0o027)
    try:
        loaded.export(tmp_path / "out")
    finally:
        os.umask(before)
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o750
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "out").iterdir()}
    assert set(modes.values()) == {0o640}, modes


def test_a_link_to_an_artifact_stays_a_link(exported, tmp_path):
    loaded = needle_tvm.load(exported)
    loaded.export(tmp_path / "version1")
    (tmp_path / "current").symlink_to("version1")
    loaded.export(tmp_path / "current")
    assert (tmp_path / "current").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["current", "version1"]


def test_an_export_takes_no_damage_over_from_the_cache(array, tmp_path, monkeypatch):
    """Hashing the files as they are now would seal the damage."""
    monkeypatch.setenv("NEEDLE_CACHE_DIR", str(tmp_path / "cache"))
    executable = needle_tvm.compile(make_mlp(16, 3), tensor(array), stage="fused")
    library = executable.path / layout.LIBRARY
    library.write_bytes(library.read_bytes()[:-1])
    with pytest.raises(ArtifactError, match=r"lib\.so: is damaged"):
        executable.export(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_readers_see_one_artifact_or_the_other_while_it_is_replaced(array, tmp_path):
    """Either is loaded without an error, and never a mixture."""
    target, stop, seen = tmp_path / "out", threading.Event(), set()
    executables = [
        needle_tvm.compile(make_mlp(16, width), tensor(array), stage="fused") for width in (3, 4)
    ]
    executables[0].export(target)

    def read():
        while not stop.is_set():
            seen.add(runtime.load(target)(array).shape[1])

    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(read)
        for number in range(30):
            executables[number % 2].export(target)
        stop.set()
        reader.result()
    assert seen == {3, 4}


NOT_TO_BE_WRITTEN = {
    "made by the system": "/proc/x",
    "read-only": "/sys/x",
    "a file in the way": "{}/file/x",
    "a file": "{}/file",
    "a name too long": "{}/" + "x" * 300,
    "a path too long": "{}/" + "x/" * 5000,
    "a NUL": "{}/a\0b",
    "half a pair": "{}/a\ud800",
}


@pytest.mark.parametrize("path", NOT_TO_BE_WRITTEN.values(), ids=NOT_TO_BE_WRITTEN)
def test_a_place_where_nothing_can_be_written_is_an_error(exported, tmp_path, path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ArtifactError) as caught:
        needle_tvm.load(exported).export(path.format(tmp_path))
    assert "\n" not in str(caught.value)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("path", NOT_TO_BE_WRITTEN.values(), ids=NOT_TO_BE_WRITTEN)
@pytest.mark.parametrize("load", [needle_tvm.load, runtime.load])
def test_a_place_where_nothing_is_is_an_error(tmp_path, load, path):
    with pytest.raises(ArtifactError):
        load(path.format(tmp_path))


@pytest.mark.parametrize("path", [None, 5, b"out", ["out"]])
def test_what_is_no_path_is_named(exported, path):
    for refused in (needle_tvm.load(exported).export, needle_tvm.load, runtime.load, artifact.sign):
        arguments = (path, "key") if refused is artifact.sign else (path,)
        with pytest.raises(UsageError, match=r"path=.*: must be a str or a Path"):
            refused(*arguments)
