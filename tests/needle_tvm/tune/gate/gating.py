"""Helpers of the gate's tests: tasks, and the services called as a worker process calls them."""

from pathlib import Path
from types import SimpleNamespace

from needle.trace import trace
from needle_tvm._tvm.names import IRModule, host_cpu, make_target, tvm
from needle_tvm.frontend import lowering
from needle_tvm.kernels import cpu
from needle_tvm.tir.functions import prim_funcs
from needle_tvm.tune import library as code
from needle_tvm.tune.gate.gate import Gate
from needle_tvm.tune.measure import steps as measure
from needle_tvm.tune.measure.devices import Processor

TARGET = {"kind": "llvm", "mcpu": host_cpu(), "num-cores": 2}
ONCE = {"number": 1, "repeat": 1, "min_repeat_ms": 0}


def target():
    return make_target(TARGET)


def functions(model, *inputs):
    """The unscheduled functions of a model by name, each in a module of its own as "main"."""
    module = lowering.lower(trace(model, *inputs), target(), "tuned")
    return {
        name: IRModule({"main": function.with_attr("global_symbol", "main")})
        for name, function in prim_funcs(module).items()
        if name in str(module["main"].script())
    }


def ruled(module, threads=2):
    """The module scheduled by our rule."""
    target = make_target({**TARGET, "num-cores": threads})
    return IRModule({"main": cpu.schedule_function(module["main"], target)})


def prepare(module, folder, seed=0):
    """(the answer of `prepare`, the gate it wrote)."""
    request = {"module": tvm.ir.save_json(module), "target": TARGET, "folder": str(folder)}
    facts = measure.prepare({**request, "seed": seed})
    return facts, Gate.load(folder)


def built(module, path):
    """Build a candidate's library and return its path."""
    request = {"module": tvm.ir.save_json(module), "target": TARGET, "path": str(path)}
    assert measure.build(request) == {"bytes": path.stat().st_size}
    return path


def measured(library, folder):
    return measure.measure({"path": str(library), "gate": str(folder), **ONCE})


def compiled(module, folder, name, threads=2):
    """A candidate with its gate, `module` prepared, and `call`, the rule's code."""
    facts, gate = prepare(module, folder / name)
    library = built(ruled(module, threads), folder / f"{name}.so")
    loaded = code.load(Path(library))

    def call(inputs, outputs):
        Processor(0).call(loaded, gate, inputs, outputs).run()

    return SimpleNamespace(
        module=module,
        facts=facts,
        gate=gate,
        folder=folder / name,
        library=library,
        call=call,
    )
