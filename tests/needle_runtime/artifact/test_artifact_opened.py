"""An Artifact is verified when it is opened, stays what it is, and has none of its code loaded."""

import dataclasses
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import needle as ndl
import needle_tvm
from needle import nn
from needle_runtime.artifact import Artifact, layout
from needle_runtime.artifact.function import ArraySpec, parse
from needle_runtime.artifact.manifest import read_manifest, write_manifest
from needle_runtime.errors import ArtifactError, TargetError
from tests.needle_tvm.conftest import tensor


class Looked(nn.Module):
    """Results of several shapes in a structure, for an index and a pair of arrays."""

    def __init__(self):
        super().__init__()
        self.rows = nn.Embedding(10, 4)
        self.linear = nn.Linear(4, 3)

    def forward(self, index, pair):
        y = self.linear(self.rows(index))
        return {"y": y, "rest": [pair[0], (pair[1] + 1, ndl.ops.summation(y))]}


X = np.arange(6, dtype=np.float32).reshape(2, 3)
INDEX = np.array([[0, 9, 3]])


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    executable = needle_tvm.compile(Looked().eval(), tensor(INDEX), (tensor(X), tensor(X)))
    return executable.export(tmp_path_factory.mktemp("exported") / "looked")


@pytest.fixture
def copied(exported, tmp_path):
    return Path(shutil.copytree(exported, tmp_path / "copy"))


@pytest.mark.parametrize("open_it", [Artifact.open, Artifact.from_manifest])
def test_it_says_what_the_model_takes_and_gives(exported, open_it):
    main = open_it(exported).main
    assert [(spec.shape, spec.dtype, spec.range) for spec in main.inputs] == [
        ((1, 3), "int64", (-10, 9)),
        ((2, 3), "float32", None),
        ((2, 3), "float32", None),
    ]
    assert [spec.name for spec in main.outputs] == [f"output.{i}" for i in range(4)]
    assert [spec.shape for spec in main.outputs] == [(1, 3, 3), (2, 3), (2, 3), ()]
    assert ArraySpec("linear.weight", (4, 3), "float32") in main.params
    assert main.flatten((INDEX,), {"pair": [X, X]}) == [INDEX, X, X]
    expected = {"y": 0, "rest": [1, (2, 3)]}
    assert main.unflatten(range(4)) == expected


def test_its_description_is_the_manifests(exported):
    """Whatever the manifest says of an array is in its spec, and nothing else."""
    artifact = Artifact.open(exported)
    described = artifact.manifest["functions"]["main"]
    for kind in ("inputs", "params", "outputs"):
        for number, (spec, entry) in enumerate(
            zip(getattr(artifact.main, kind), described[kind], strict=True)
        ):
            found = dataclasses.asdict(spec)
            found = {name: value for name, value in found.items() if value is not None}
            wanted = {"name": f"output.{number}", **entry}
            assert found == {k: tuple(v) if isinstance(v, list) else v for k, v in wanted.items()}
    assert parse(described) == artifact.main


def test_it_cannot_be_changed(exported):
    artifact = Artifact.open(exported)
    for name in ("path", "manifest", "main", "obstacle", "target"):
        with pytest.raises(AttributeError):
            setattr(artifact, name, None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        artifact.main.inputs = ()


def test_its_golden_example_is_the_files(exported):
    golden = Artifact.open(exported).golden()
    np.testing.assert_array_equal(golden.inputs[0], INDEX)
    np.testing.assert_array_equal(golden.outputs[2], X + 1)
    assert golden.source == "eager" and len(golden.tolerances) == 4
    assert list(golden.arrays()) == [f"input.{i}" for i in range(3)] + [
        f"output.{i}" for i in range(4)
    ]


def test_an_entry_of_the_cache_has_no_example_and_no_weights():
    executable = needle_tvm.compile(Looked().eval(), tensor(INDEX), (tensor(X), tensor(X)))
    artifact = Artifact.open(executable.path)
    assert artifact.golden() is None and artifact.read_arrays(layout.PARAMS) is None


def test_an_example_that_does_not_fit_is_refused(copied):
    shutil.copy(copied / layout.PARAMS, copied / layout.GOLDEN)
    write_manifest(copied, read_manifest(copied))
    with pytest.raises(ArtifactError, match="does not hold this model's inputs and outputs"):
        Artifact.open(copied).golden()


LOOK = """
import sys
for name in ("needle", "tvm", "tvm_ffi", "torch"):
    sys.modules[name] = None
from needle_runtime.artifact import Artifact, layout
artifact = Artifact.open(sys.argv[1])
assert artifact.obstacle is None and artifact.main.inputs and artifact.golden().inputs
assert artifact.read(layout.LIBRARY).startswith(b"\\x7fELF") and artifact.read_arrays(layout.PARAMS)
mapped = "".join(line for line in open("/proc/self/maps") if "/_cpuid." not in line)
assert "tvm" not in mapped and "lib.so" not in mapped and "needle-load" not in mapped
assert not {"needle_runtime.program", "needle_runtime._tvm.ffi"} & set(sys.modules)
"""


def test_nothing_of_its_code_is_loaded(exported):
    """Neither is TVM's runtime: it takes NumPy alone."""
    command = [sys.executable, "-c", LOOK, str(exported)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


FILES = [layout.LIBRARY, layout.SCRIPT, layout.PARAMS, layout.GOLDEN]


def damages(data, rng):
    """A file's bytes with something wrong with them."""
    for percent in (0, 1, 50, 99):
        yield data[: len(data) * percent // 100]
    yield data + b"\0"
    for _ in range(8):
        flipped = bytearray(data)
        flipped[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
        yield bytes(flipped)


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_one_is_not_opened_and_not_read(copied, name, rng):
    data = (copied / name).read_bytes()
    opened = Artifact.open(copied)
    for wrong in damages(data, rng):
        (copied / name).write_bytes(wrong)
        with pytest.raises(ArtifactError, match=f"{name}: is damaged"):
            Artifact.open(copied)
        for artifact in (opened, Artifact.from_manifest(copied)):  # damaged since, or not looked at
            with pytest.raises(ArtifactError, match=f"{name}: is damaged"):
                artifact.read(name)
    (copied / name).write_bytes(data)
    assert Artifact.open(copied).read(name) == data


@pytest.mark.parametrize("open_it", [Artifact.open, Artifact.from_manifest])
def test_a_damaged_manifest_is_refused_either_way(copied, open_it, rng):
    for wrong in damages((copied / layout.MANIFEST).read_bytes(), rng):
        (copied / layout.MANIFEST).write_bytes(wrong)
        with pytest.raises(ArtifactError, match=layout.MANIFEST):
            open_it(copied)


@pytest.mark.parametrize("name", FILES)
def test_what_the_caller_reads_next_is_hashed_then(copied, name):
    data = bytearray((copied / name).read_bytes())
    data[-1] ^= 1
    (copied / name).write_bytes(data)
    artifact = Artifact.open(copied, unread=(name,))
    with pytest.raises(ArtifactError, match=f"{name}: is damaged"):
        artifact.read(name)
    (copied / name).write_bytes(data[:-1])  # its size is looked at, all the same
    with pytest.raises(ArtifactError, match=f"{name}: is damaged"):
        Artifact.open(copied, unread=(name,))


def test_one_for_another_machine_is_opened_and_says_why_it_does_not_run(copied):
    manifest = read_manifest(copied)
    manifest["target"] |= {"features": ["sve", "amx-tile", "sse2"], "mcpu": "future"}
    write_manifest(copied, manifest)
    artifact = Artifact.open(copied)
    assert "sve" in artifact.missing_features or "amx-tile" in artifact.missing_features
    assert "is compiled for future; this one lacks" in artifact.obstacle
    assert len(artifact.golden().inputs) == 3
    artifact.check_versions()
    with pytest.raises(TargetError) as caught:
        artifact.check_runs_here()
    assert str(caught.value) == artifact.obstacle
