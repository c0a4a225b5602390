"""Stores and returns trials of TVM modules, as TVM objects, in a record store. This module imports
TVM.

database = Database(store, Key.of(target))
database.commit(record, rejected="", session=session, spent=0.3)
((name, record),) = database.best(module, 1)
"""

from __future__ import annotations

import json
from typing import Any

from needle_tvm._tvm import names as tvm_names
from needle_tvm._tvm.names import IRModule, ms, tvm
from needle_tvm.errors import RecordsError
from needle_tvm.tir import functions
from needle_tvm.tune.records import facts
from needle_tvm.tune.records.facts import Kernel, Trial
from needle_tvm.tune.records.keys import Key
from needle_tvm.tune.records.store import Store, now, this_host


class Database:
    """The trials of `store` that apply to `key`.

    Two modules are the same kernel if their structural hashes are equal and TVM finds them
    structurally equal.
    """

    def __init__(self, store: Store, key: Key) -> None:
        self.store, self.key = store, key
        self._target = key.fields["target"]
        self._modules: dict[str, IRModule] = {}  # the modules of kernels compared before, by name

    def names(self, mod: IRModule) -> list[str]:
        """Return the names of the kernels equal to `mod`.

        A merged store may have several, which differ in the names of variables.
        """
        digest, found = tvm_names.structural_hash(mod), []
        for name, kernel in self.store.all(Kernel).items():
            if (kernel.structural_hash, kernel.key) == (digest, self.key.text):
                if name not in self._modules:
                    self._modules[name] = tvm_names.load_module(kernel.module)
                if tvm_names.structural_equal(self._modules[name], mod):
                    found.append(name)
        return found

    def commit(self, record: Any, *, rejected: str, session: str, spent: float) -> str:
        """Store one trial; return its name. It is on disk when this returns.

        `record` is a TuningRecord; its run_secs are None if the candidate did not run. `rejected`,
        `session` and `spent` are as in `facts.Trial`. Raises RecordsError if the record cannot be
        stored or its target is not the key's, and ValueError for a candidate that did not run and
        is not rejected.
        """
        if record.target is not None and tvm_names.target_fields(record.target) != self._target:
            raise RecordsError(
                f"{self.store.path}: a record for {record.target} was committed to a database for "
                f"{json.dumps(self._target)}; nothing was written"
            )
        trace, run_secs, _, args_info = record.as_json()
        run_secs = None if run_secs is None else [float(seconds) for seconds in run_secs]
        if facts.mean_seconds(run_secs) is None and not rejected:
            raise ValueError("a candidate that did not run must be rejected")
        equal = self.names(record.workload.mod)
        kernel = self.store.all(Kernel)[equal[0]] if equal else self._kernel(record.workload.mod)
        trial = Trial(
            kernel=facts.name(kernel),
            trace=facts.canonical(trace),
            run_secs=facts.canonical(run_secs),
            args_info=facts.canonical(args_info),
            rejected=rejected,
            session=session,
            spent=spent,
            measured_at=now(),
            host=this_host(),
        )
        return self.store.add(trial, kernel)

    def _kernel(self, mod: IRModule) -> Kernel:
        return Kernel(tvm_names.structural_hash(mod), self.key.text, tvm.ir.save_json(mod))

    def known(self, mod: IRModule) -> dict[str, float | None]:
        """Return the times of all traces tried on `mod`, by `trace_text`, like `Store.known`.

        No search needs to try any of these again.
        """
        return self.store.known(self.names(mod))

    def best(self, mod: IRModule, limit: int) -> list[tuple[str, Any]]:
        """Return the fastest usable TuningRecords of `mod`, with their names in the store."""
        workload = ms.database.Workload(mod)
        found = []
        for name, trial in self.store.best(self.names(mod), limit):
            trace, run_secs, info = map(json.loads, (trial.trace, trial.run_secs, trial.args_info))
            record = [trace, run_secs, self._target, info]
            found.append((name, ms.database.TuningRecord.from_json(record, workload)))
        return found


def trace_text(trace: Any) -> str:
    """Return a trace as text, in the form of the store's trials and of `Database.known`."""
    return facts.canonical(functions.trace_fields(trace))
