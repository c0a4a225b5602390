"""An artifact uses no more threads than it was made for, or than the process may use."""

import os
import subprocess
import sys

import numpy as np
import pytest

import needle_tvm
from tests.needle_tvm.conftest import make_mlp, tensor

SCRIPT = """
import os, sys
cores = int(sys.argv[3])
if cores:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
import numpy as np
import needle_runtime
program = needle_runtime.load(sys.argv[1])
x = np.load(sys.argv[2])
assert np.array_equal(program(x), program(x))
np.save(sys.argv[2] + ".out.npy", program(x))
print(os.environ["TVM_NUM_THREADS"], len(os.listdir("/proc/self/task")))
"""


@pytest.fixture(scope="module")
def shared_out(tmp_path_factory):
    """An artifact for four threads with large layers, its input's file, and its output."""
    folder = tmp_path_factory.mktemp("threads")
    model = make_mlp(256, 256, 256)
    x = np.random.default_rng(0).standard_normal((64, 256)).astype("float32")
    compiled = needle_tvm.compile(model, tensor(x), threads=4)
    assert "T.parallel" in compiled.script
    np.save(folder / "x.npy", x)
    return compiled.export(folder / "artifact"), folder / "x.npy", model(tensor(x)).numpy()


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs CPU affinity")
@pytest.mark.parametrize(
    ("cores", "asked", "threads"), [(1, None, 1), (0, "1", 1), (0, "3", 3), (0, "9", 4)]
)
def test_an_artifact_runs_on_fewer_threads_than_it_was_made_for(shared_out, cores, asked, threads):
    path, x, expected = shared_out
    environment = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
    if asked:
        environment["NEEDLE_NUM_THREADS"] = asked
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(path), str(x), str(cores)],
        env={**environment, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    chosen, running = done.stdout.split()
    assert int(chosen) == threads
    assert int(running) <= threads + 1  # TVM's workers include the caller
    np.testing.assert_allclose(np.load(f"{x}.out.npy"), expected, rtol=1e-5, atol=1e-5)
