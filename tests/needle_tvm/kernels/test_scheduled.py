"""A function that was tuned alone goes back into the module it came from."""

import numpy as np
import pytest

pytest.importorskip("tvm", reason="needs the [tvm] extra")

import needle as ndl
from needle.trace import trace
from needle_tvm._tvm.names import IRModule, tvm
from needle_tvm.frontend import lowering
from needle_tvm.kernels import cpu
from needle_tvm.kernels.scheduled import mark_scheduled
from needle_tvm.lower import build
from needle_tvm.target.spec import resolve
from needle_tvm.tir.functions import prim_funcs
from needle_tvm.tune import session


def test_every_task_can_be_replaced_by_a_candidate(tmp_path):
    """Do as `session.tune` does, with the rule's schedule instead of one that a search finds."""
    model = ndl.nn.Sequential(
        ndl.nn.Linear(64, 96), ndl.nn.ReLU(), ndl.nn.Linear(96, 64), ndl.nn.Tanh()
    )
    model.eval()
    x = ndl.Tensor(np.zeros((8, 64), np.float32))
    target = resolve("cpu", 2).to_tvm()
    module = lowering.lower(trace(model, x), target, "tuned")
    tasks = session.find_tasks(module)
    assert len(tasks) >= 2
    for name, (plain, _) in tasks.items():
        rule = IRModule({"main": cpu.schedule_function(plain["main"], target)})
        candidate = tvm.ir.load_json(tvm.ir.save_json(rule))["main"]
        assert candidate.attrs["global_symbol"] == "main"
        variable = module.get_global_var(name)
        before = dict(module[variable].attrs)
        module.update_func(variable, mark_scheduled(candidate, module[variable]))
        after = dict(module[variable].attrs)
        assert after.pop("tirx.is_scheduled")
        assert after == before
    assert set(tasks) < set(prim_funcs(module))
    build.write_library(build.schedule(module, target, "tuned"), target, tmp_path)
