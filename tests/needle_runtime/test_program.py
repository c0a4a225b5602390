"""A Program runs: where its artifact cannot, there is none, and nothing has been loaded."""

import mmap
import platform
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import needle_runtime
import needle_tvm
from needle_runtime import executor
from needle_runtime.artifact import Artifact, layout
from needle_runtime.artifact.manifest import read_manifest, write_manifest
from needle_runtime.errors import ArtifactError, TargetError
from needle_runtime.memory import HostMemory
from needle_runtime.random_inputs import random_inputs
from needle_runtime.target import gpu
from tests.needle_tvm.conftest import make_mlp, tensor

X = np.ones((2, 8), np.float32)
FOREIGN = {"kind": "llvm", "mcpu": "diamondrapids"}  # on none of the machines we have


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    path = tmp_path_factory.mktemp("exported") / "mlp"
    return needle_tvm.compile(make_mlp(8, 4), tensor(X), stage="fused").export(path)


@pytest.fixture
def copied(exported, tmp_path):
    return Path(shutil.copytree(exported, tmp_path / "copy"))


@pytest.fixture
def loads(monkeypatch):
    """The libraries that are loaded."""
    loaded, load_library = [], executor.load_library

    def noted(code, **options):
        loaded.append(code)
        return load_library(code, **options)

    monkeypatch.setattr(executor, "load_library", noted)
    return loaded


def test_its_public_members_are_few():
    found = {name for name in vars(needle_runtime.Program) if not name.startswith("_")}
    state = {"begin", "set_weights", "state", "load_state"}
    assert found == {"inputs", "outputs", "params", "run", "set_params"} | state


ELSEWHERE = [
    {"target": {"kind": "llvm", "features": ["sve", "amx-tile"], "mcpu": "future"}},
    {"target": {"kind": "llvm", "features": ["no-such-feature"]}},
    {"versions": {"tvm": "0.1"}},
    {"versions": {}},
    pytest.param(
        {"target": {"kind": "cuda", "arch": "sm_90"}},
        marks=pytest.mark.skipif(bool(gpu.gpus()), reason="there is a GPU"),
    ),
]


@pytest.mark.parametrize("changes", ELSEWHERE)
def test_there_is_none_where_it_cannot_run(copied, loads, changes):
    write_manifest(copied, {**read_manifest(copied), **changes})
    artifact = Artifact.open(copied)
    wanted = TargetError if "target" in changes else ArtifactError
    said = set()
    for make in (needle_runtime.Program, executor.Executor):
        with pytest.raises(wanted) as caught:
            make(artifact)
        said.add(str(caught.value))
    for load in (needle_runtime.load, needle_runtime.load_with_params, needle_tvm.load):
        with pytest.raises(wanted) as caught:
            load(copied)
        said.add(str(caught.value))
    assert len(said) == 1 and not loads
    assert wanted is ArtifactError or said == {artifact.obstacle}


def test_what_is_loaded_are_the_bytes_that_were_checked(copied, loads):
    artifact = Artifact.open(copied)
    library = (copied / layout.LIBRARY).read_bytes()
    (copied / layout.LIBRARY).write_bytes(library[:-1] + b"\1")  # since it was opened
    with pytest.raises(ArtifactError, match=r"lib\.so: is damaged"):
        needle_runtime.Program(artifact)
    assert not loads
    (copied / layout.LIBRARY).write_bytes(library)
    needle_runtime.Program(artifact)
    assert loads == [library]


def test_programs_of_one_artifact_have_weights_of_their_own(exported):
    artifact = Artifact.open(exported)
    weights = artifact.read_arrays(layout.PARAMS)
    first, second = needle_runtime.Program(artifact), needle_runtime.Program(artifact)
    first.set_params(weights)
    second.set_params({name: -array for name, array in weights.items()})
    x = np.random.default_rng(0).standard_normal(X.shape, dtype=np.float32)
    expected = needle_runtime.load(exported)(x)
    np.testing.assert_array_equal(first(x), expected)
    assert not np.array_equal(second(x), expected)


def test_its_parts_give_what_it_gives(exported):
    program = needle_runtime.load(exported)
    values = random_inputs(program.artifact, 3)
    expected = program(*values)
    parts = program.executor
    tensors = parts.call(parts.convert(values))
    parts.synchronize()
    for found in (program.run(values)[0], parts.run(values)[0], parts.to_arrays(tensors)[0]):
        np.testing.assert_array_equal(found, expected)
    result = parts.new_machine()["main"](*parts.convert(values), *parts.weights)
    np.testing.assert_array_equal(np.from_dlpack(result), expected)


def test_the_memory_of_weights_lies_in_large_pages():
    memory = HostMemory()
    array = np.random.default_rng(0).random(1 << 22, np.float32)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    small_pages = mmap.mmap(-1, array.nbytes, flags)  # as the virtual machine's memory
    held = np.frombuffer(small_pages, np.float32)
    held[:] = array
    given = memory.shared(held, 64)
    before = large_pages_at(held.ctypes.data)
    memory.use_large_pages([given, memory.copied(np.zeros((0, 3), np.float32))])
    np.testing.assert_array_equal(held, array)
    if before is None or not can_collapse():
        pytest.skip("this system does not put memory into large pages on request")
    assert before == 0 and large_pages_at(held.ctypes.data) >= array.nbytes - 2 * (2 << 20)


def large_pages_at(address):
    """The bytes in large pages of the mapping that holds an address; None if Linux does not say."""
    smaps = Path("/proc/self/smaps")
    inside = False
    for line in smaps.read_text().splitlines() if smaps.exists() else ():
        name, _, rest = line.partition(" ")
        if name.endswith(":"):
            if inside and name == "AnonHugePages:":
                return int(rest.split()[0]) << 10
        else:
            begin, end = (int(bound, 16) for bound in name.split("-"))
            inside = begin <= address < end
    return None


def can_collapse():
    """Whether the system has large pages, and madvise's MADV_COLLAPSE."""
    enabled = Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
    release = tuple(map(int, re.findall(r"\d+", platform.release())[:2]))
    return enabled.exists() and int(enabled.read_text()) == 2 << 20 and release >= (6, 1)


# An executable of code for another machine


def test_an_executable_for_another_machine_has_an_artifact_and_no_program(tmp_path, loads):
    model = make_mlp(8, 4)
    found = needle_tvm.compile(model, tensor(X), target=FOREIGN)
    assert not loads and not found.from_cache
    assert needle_tvm.compile(model, tensor(X), target=FOREIGN).from_cache and not loads
    for use in (lambda: found(X), lambda: found(), lambda: found.program):
        with pytest.raises(TargetError) as caught:
            use()
        assert str(caught.value) == found.artifact.obstacle
    state = {name: value.numpy() + 1 for name, value in model.state_dict().items()}
    found.set_params(state)
    folder = found.export(tmp_path / "model")
    carried = Artifact.open(folder).read_arrays(layout.PARAMS)
    for name, value in state.items():
        np.testing.assert_array_equal(carried[name], value)
    with pytest.raises(TargetError, match="is compiled for diamondrapids; this one lacks"):
        needle_tvm.load(folder)
    assert not loads
