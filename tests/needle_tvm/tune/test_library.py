"""Libraries of single functions, as candidates of a search are."""

import os
from pathlib import Path

import numpy as np
import pytest

import needle as ndl
from needle_tvm._tvm.names import te, tirx, tvm
from needle_tvm.errors import TuningError
from needle_tvm.kernels import cpu
from needle_tvm.target.spec import resolve
from needle_tvm.tune import library


def threads():
    return len(os.listdir("/proc/self/task"))


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads as Linux does")
def test_candidates_run_on_the_threads_of_compiled_models(tmp_path, monkeypatch):
    monkeypatch.setenv("NEEDLE_NUM_THREADS", "2")
    x = te.placeholder((512, 512), "float32", "x")
    y = te.compute(x.shape, lambda i, j: tirx.exp(x[i, j]))
    target = resolve("cpu", 2).to_tvm()
    function = cpu.schedule_function(te.create_prim_func([x, y]), target)
    assert "T.parallel" in function.script()
    library.write(tvm.IRModule({"main": function}), target, tmp_path / "one.so")
    loaded = library.load(tmp_path / "one.so")["main"]
    (ndl.Tensor(np.ones((512, 512))) + 1).numpy()  # needle's own threads have started
    before = threads()
    array = np.random.default_rng(0).standard_normal((512, 512)).astype("float32")
    given, result = (tvm.runtime.tensor(each) for each in (array, np.empty_like(array)))
    loaded(given, result)
    np.testing.assert_allclose(result.numpy(), np.exp(array), rtol=1e-6)
    assert threads() == before, "TVM has started threads of its own"


def test_a_library_that_is_not_there(tmp_path):
    with pytest.raises(TuningError, match="there is no such library"):
        library.load(tmp_path / "one.so")
