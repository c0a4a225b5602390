"""Libraries that are linked in one folder, as those of a search are."""

import numpy as np
import pytest

pytest.importorskip("tvm", reason="needs the [tvm] extra")

from kernel_lab import build, registry
from kernel_lab.contestants import library
from kernel_lab.workload import Case
from needle_runtime.process.timing import save_arrays
from needle_tvm.lower import linking


def test_libraries_of_one_folder_have_files_of_their_own(tmp_path, monkeypatch):
    """Each is linked only once the files of all are written."""
    if linking.cxx_compiler() is None:
        pytest.skip("no C++ compiler")
    ladder, target = registry.ladder("vector_add", "cpu"), build.make_target("cpu")
    case = Case(ladder.workload.size("cpu", {"N": 50}), build.processor(target))
    waiting, link = [], linking.link
    monkeypatch.setattr(linking, "link", lambda files, *more, **named: waiting.append(list(files)))
    for rung in ladder.rungs[:2]:
        build.write_library(rung.module(case), target, tmp_path / f"{rung.name}.so")
    first, second = waiting
    assert first and not set(first) & set(second)
    assert not list(tmp_path.iterdir())  # nothing is left of them
    monkeypatch.setattr(linking, "link", link)
    inputs = str(tmp_path / "inputs.npz")
    arrays = ladder.workload.inputs(case.size, 0)
    save_arrays(inputs, {str(i): array for i, array in enumerate(arrays)})
    for rung in ladder.rungs[:2]:
        path = tmp_path / f"{rung.name}.so"
        build.write_library(rung.module(case), target, path)
        call, outputs = library(str(path), inputs, [50])
        call()
        np.testing.assert_array_equal(outputs()[0], arrays[0] + arrays[1])
