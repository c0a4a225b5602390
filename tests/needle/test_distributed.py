"""Ranks that train together beside one process that trains on whole batches."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import needle as ndl
from needle import rng
from tests.needle import distributed_training as training

SCRIPT = training.__file__
SHARED = Path("/dev/shm")
MPIEXEC = Path(sys.executable).with_name("mpiexec")
needs_mpi = pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None or not MPIEXEC.exists(),
    reason="needs the extra mpi",
)


@pytest.fixture(autouse=True)
def own_generators():
    """Scripts seed the process's generators, which are NumPy's until then."""
    before = rng.get_state(), np.random.get_state()
    rng._generator = None
    yield
    rng.set_state(before[0])
    np.random.set_state(before[1])


def launch(ranks, what, folder):
    """Run the script on this many ranks; its exit status, output and errors."""
    python = [sys.executable, "-W", "error", SCRIPT, what, str(folder)]
    command = [str(MPIEXEC), "-n", str(ranks), *python] if ranks > 1 else python
    # mpiexec would read the input of pytest's own process.
    how = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": 120}
    before = set(SHARED.glob("mpich_shm_*"))
    done = subprocess.run(command, **how)
    for left in set(SHARED.glob("mpich_shm_*")) - before:  # by ranks that were killed
        left.unlink(missing_ok=True)
    return done.returncode, done.stdout, done.stderr


@needs_mpi
def test_any_number_of_ranks_equals_one_process(tmp_path):
    """Losses, parameters and running statistics after three passes over shuffled, uneven batches,
    with dropout and noise. The last run of each goes on from a checkpoint of the one before.

    In float64; sums over the ranks have another order than those over the rows.
    """
    expected = training.train_all(folder(tmp_path, "plain"))
    before = None
    for ranks in (2, 3, 1):
        here = folder(tmp_path, str(ranks))
        if before is not None:
            shutil.copy(before / "resumed.safetensors", here)
        status, out, errors = launch(ranks, "train", here)
        assert (status, out, errors) == (0, "", "")
        with np.load(here / f"{ranks}.npz") as found:
            assert found.keys() == expected.keys()
            for name, value in expected.items():
                np.testing.assert_allclose(found[name], value, 1e-12, 1e-14, err_msg=name)
        before = here


def folder(tmp_path, name):
    made = tmp_path / name
    made.mkdir()
    return made


@needs_mpi
def test_a_lost_rank_ends_all_and_leaves_the_checkpoint(tmp_path):
    status, out, errors = launch(3, "killed", tmp_path)
    assert status and (out + errors).count("Killed (signal 9)") == 1 and "Traceback" not in errors
    assert len(ndl.Checkpoint.read(tmp_path / "killed.safetensors")["losses"]) == training.SAVED
    resumed = training.train(tmp_path / "killed.safetensors")
    expected = training.train(tmp_path / "whole.safetensors")
    for name, value in expected.items():
        np.testing.assert_allclose(resumed[name], value, 1e-12, 1e-14, err_msg=name)


@needs_mpi
def test_ranks_that_do_different_things_end_with_one_error(tmp_path):
    status, out, errors = launch(2, "refusals", tmp_path)
    assert out == "checked\n" and status, errors
    assert errors.count("Traceback") == 1, errors
    assert (
        "RuntimeError: needle.distributed: rank 0 sums the gradients of backward pass 3 of model "
        "6, but rank 1 has ended: all ranks must take the same steps" in errors
    )
    assert "rank 0 failed and ends all 2" in errors


def test_without_mpi4py_the_error_names_the_extra(monkeypatch):
    monkeypatch.setattr(ndl.distributed.group, "_group", None)
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(ImportError, match=r"pip install 'needle-dl\[mpi\]'"):
        ndl.distributed.init()


DRAWS = {
    "rand": lambda n: ndl.rand(n, 3),
    "float64": lambda n: ndl.rand(n, 3, dtype="float64"),
    "randn": lambda n: ndl.randn(n, 5),
    "randint": lambda n: ndl.randint(0, 1000, (n,)),
    "bernoulli": lambda n: ndl.bernoulli(ndl.full((n, 4), 0.5)),
    "multinomial": lambda n: ndl.multinomial(ndl.ones(n, 6), 3),
    "dropout2d": lambda n: ndl.nn.functional.dropout2d(ndl.ones(n, 9, 2, 2), 0.5),
    "more rows": lambda n: ndl.nn.functional.dropout(ndl.ones(n * 4, 7), 0.5),
}


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("name", [*DRAWS])
def test_each_row_gets_the_numbers_that_it_gets_in_the_whole_batch(name, seed, monkeypatch):
    """Also what is drawn afterwards, by whichever generator, is the same on all ranks."""
    if seed is None:
        monkeypatch.setattr(rng, "_generator", None)
        np.random.seed(0)
    else:
        ndl.manual_seed(seed)
    before, draw, parts = rng.get_state(), DRAWS[name], []
    whole = draw(7).numpy()
    after = rng.get_state()
    for first, end in ((0, 2), (2, 4), (4, 7)):
        rng.set_state(before)
        monkeypatch.setattr(rng, "rows", rng.Rows(first, end, 7))
        parts.append(draw(end - first).numpy())
        assert rng.get_state() == after
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_draws_of_other_shapes_are_the_same_for_all_rows(monkeypatch):
    ndl.manual_seed(0)
    expected = [ndl.rand(5, 6).numpy(), ndl.rand(()).numpy(), ndl.randperm(4).numpy()]
    ndl.manual_seed(0)
    monkeypatch.setattr(rng, "rows", rng.Rows(2, 6, 9))
    found = [ndl.rand(5, 6).numpy(), ndl.rand(()).numpy(), ndl.randperm(4).numpy()]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
