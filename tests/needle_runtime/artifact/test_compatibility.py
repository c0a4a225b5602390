"""Artifacts and runtimes of different versions: docs/compatibility.md."""

import re
from pathlib import Path

import numpy as np
import pytest

import needle_runtime
from needle_runtime._tvm import versions
from needle_runtime.artifact import Artifact
from needle_runtime.artifact.manifest import read_manifest, write_manifest
from needle_runtime.errors import ArtifactError

KEPT = Path(__file__).parents[1] / "kept"  # artifacts that released versions have written


def changed(folder, **changes):
    write_manifest(folder, {**read_manifest(folder), **changes})
    return folder


VERSIONS = sorted(path.name for path in KEPT.iterdir())


@pytest.fixture(params=VERSIONS)
def kept(request):
    """The artifacts of a released version, in order of versions; they are for x86-64 processors."""
    folder = KEPT / request.param
    if Artifact.open(folder / "reader").obstacle is not None:
        pytest.skip("this processor is of another architecture")
    return folder


def test_models_of_earlier_versions_run(kept):
    program = needle_runtime.load(kept / "reader")
    assert needle_runtime.self_test(program).passed
    for rows in (1, 16):
        assert program(np.ones((rows, 6), np.float32)).shape == (rows, 3)


def test_training_steps_of_earlier_versions_run(kept):
    program, wanted = needle_runtime.load(kept / "step"), np.load(kept / "step.npz")
    losses = [float(program(wanted["x"], wanted["y"])) for _ in wanted["losses"]]
    # The code is for any x86-64 processor and on one thread: each computes the same bits.
    assert losses == wanted["losses"].tolist() and losses[-1] < losses[0]


def test_each_minor_version_has_kept_artifacts():
    wanted = versions.installed("needle-runtime").rpartition(".")[0]
    assert wanted in {version.rpartition(".")[0] for version in VERSIONS}


def test_an_artifact_says_what_it_needs(exported):
    assert read_manifest(exported)["requires"] == {"needle_runtime": versions.NEEDS}


def test_an_artifact_without_the_entry_is_of_the_first_version(copied, array):
    manifest = read_manifest(copied)
    del manifest["requires"]
    write_manifest(copied, manifest)
    assert needle_runtime.load(copied)(array).shape == (4, 5)


@pytest.mark.parametrize("needed", ["0.2", "1.0", "0.10"])
def test_an_older_runtime_refuses_by_name(copied, needed, monkeypatch):
    monkeypatch.setattr(versions, "installed", {"needle-runtime": "0.1.7"}.get)
    changed(copied, requires={"needle_runtime": needed})
    with pytest.raises(ArtifactError) as raised:
        needle_runtime.load(copied)
    assert str(raised.value) == (
        f"{copied}: needs needle-runtime {needed} or later, but 0.1.7 is installed: "
        "pip install --upgrade needle-runtime"
    )


def test_a_newer_runtime_runs_it(exported, array, monkeypatch):
    known = versions.installed
    monkeypatch.setattr(
        versions, "installed", lambda name: "0.3.0" if name == "needle-runtime" else known(name)
    )
    assert needle_runtime.load(exported)(array).shape == (4, 5)


def test_code_of_another_tvm_runs_if_it_is_listed(copied, array, monkeypatch):
    changed(copied, versions={**read_manifest(copied)["versions"], "tvm": "0.26.0"})
    with pytest.raises(ArtifactError, match=re.escape("built with tvm 0.26.0, but ")):
        needle_runtime.load(copied)
    monkeypatch.setattr(versions, "RUNS", {*versions.RUNS, ("0.26.0", versions.FFI)})
    assert np.isfinite(needle_runtime.load(copied)(array)).all()


@pytest.mark.parametrize("needed", ["", "one", "1", "0.x", 3, None])
def test_a_malformed_entry_is_refused(copied, needed):
    changed(copied, requires={"needle_runtime": needed})
    with pytest.raises(ArtifactError, match="is not an artifact's manifest"):
        Artifact.open(copied)
