"""Trials of small functions, to commit."""

from needle_tvm._tvm import names as tvm_names
from needle_tvm._tvm.names import Schedule, ms, te, tvm

TARGET = {"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2}
SESSION = "0" * 64


def scaled(n, name="A", factor=2.0):
    """A module that scales an (n, n) array; its argument is called `name`."""
    array = te.placeholder((n, n), name=name)
    result = te.compute(
        (n, n), lambda i, j: array[i, j] * tvm_names.tirx.const(factor, "float32"), name="B"
    )
    return tvm.IRModule({"main": te.create_prim_func([array, result])})


def measured(module, target, seconds, factor=4):
    """A record of a schedule that splits the inner loop by `factor`; None seconds: it failed."""
    schedule = Schedule(module)
    _, inner = schedule.get_loops(schedule.get_sblock("B"))
    schedule.split(inner, [None, factor])
    arguments = ms.arg_info.ArgInfo.from_prim_func(module["main"])
    workload = ms.database.Workload(module)
    times = None if seconds is None else [seconds]
    return ms.database.TuningRecord(schedule.trace, workload, times, target, arguments)


def commit(database, module, target, *seconds):
    """Commit a trial for each time; return their names."""
    names = []
    for factor, one in enumerate(seconds, 2):
        record = measured(module, target, one, factor)
        rejected = "crash: ended by SIGSEGV" if one is None else ""
        names.append(database.commit(record, rejected=rejected, session=SESSION, spent=0.5))
    return names
