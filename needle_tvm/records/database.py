"""The record store as a meta_schedule database. Imports TVM.

key = Key.of(target)
tuning = RecordDatabase(store, key, states=(MEASURED, GATED))   # what a search learns from
with RecordDatabase(store, key): ...                            # what is compiled with
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from needle_tvm import _tvm
from needle_tvm._tvm import IRModule, Target, ms, tvm
from needle_tvm.errors import DamagedRecordsError, RecordsError
from needle_tvm.records import rows
from needle_tvm.records.keys import Key
from needle_tvm.records.rows import GATED, Module, Record, Workload
from needle_tvm.records.store import Store, now, this_host

for _error in (RecordsError, DamagedRecordsError):
    _tvm.raised_through_tvm(_error)


@_tvm.derived_object
class RecordDatabase(ms.database.PyDatabase):
    """The records of `store` that hold for `key`, and are in one of `states`.

    By default only gated records are served; a search passes `states=(MEASURED, GATED)` to learn
    from what it measured a moment ago. Whatever is committed is on disk when the commit returns,
    as measured. Two modules are the same workload when their structural hashes are equal and TVM
    finds them structurally equal.

    Raises RecordsError, from within TVM too, when a commit cannot be kept, and when a record is
    for another target than the key's.
    """

    def __init__(self, store: Store, key: Key, states: Sequence[str] = (GATED,)) -> None:
        super().__init__()
        self.store, self.key, self.states = store, key, tuple(states)
        self._target = key.fields["target"]
        self._modules: dict[str, IRModule] = {}  # workloads that were compared before, by name

    def has_workload(self, mod: IRModule) -> bool:
        """Whether a workload equal to `mod` is in the store, under this key."""
        return bool(self._equal(mod))

    def commit_workload(self, mod: IRModule) -> Any:
        """Keep `mod` as a workload, if none equal to it is there."""
        found = self._equal(mod)
        if found:
            return ms.database.Workload(self._modules[found[0]])
        self._keep(mod, [])
        return ms.database.Workload(mod)

    def commit_tuning_record(self, record: Any) -> None:
        """Keep a record, as measured now on this machine."""
        if record.target is not None and _tvm.target_fields(record.target) != self._target:
            raise RecordsError(
                f"{self.store.path}: a record for {record.target} was committed to a database for "
                f"{json.dumps(self._target)}; nothing was written"
            )
        trace, run_secs, _, args_info = record.as_json()
        run_secs = None if run_secs is None else [float(seconds) for seconds in run_secs]
        self._keep(record.workload.mod, [(trace, run_secs, args_info)])

    def get_top_k(self, workload: Any, top_k: int) -> list[Any]:
        """The fastest usable records of a workload, fastest first."""
        return [record for _, record in self.best(workload.mod, top_k)]

    def get_all_tuning_records(self) -> list[Any]:
        """Every usable record under this key."""
        found = []
        for name, module in self._workloads().items():
            workload = ms.database.Workload(module)
            for _, record in self.store.best([name], _NO_LIMIT, self.states):
                found.append(self._tuning_record(record, workload))
        return found

    def query_tuning_record(
        self, mod: IRModule, target: Target, workload_name: str | None = None
    ) -> Any:
        """The fastest usable record of `mod`; None where there is none, or for another target."""
        if _tvm.target_fields(target) != self._target:
            return None
        found = self.best(mod, 1)
        return found[0][1] if found else None

    def __len__(self) -> int:
        """How many usable records there are under this key."""
        return sum(
            len(self.store.best([name], _NO_LIMIT, self.states)) for name in self._workloads()
        )

    def best(
        self, mod: IRModule, limit: int, states: Sequence[str] | None = None
    ) -> list[tuple[str, Any]]:
        """The fastest records of `mod` with their names in the store, for `Store.decide`."""
        names = self._equal(mod)
        found = self.store.best(names, limit, self.states if states is None else states)
        workload = ms.database.Workload(mod)
        return [(name, self._tuning_record(record, workload)) for name, record in found]

    def _equal(self, mod: IRModule) -> list[str]:
        """Names of the workloads equal to `mod`: merged stores may hold several, which differ in
        the names of variables."""
        found = []
        for name, text in self.store.candidates(_tvm.structural_hash(mod), self.key.row):
            if name not in self._modules:
                self._modules[name] = tvm.ir.load_json(text)
            if _tvm.structural_equal(self._modules[name], mod):
                found.append(name)
        return found

    def _keep(self, mod: IRModule, measured: Sequence[tuple[Any, Any, Any]]) -> None:
        # The workload is written along with every record: `prune` may have removed it meanwhile.
        equal = self._equal(mod)
        mod = self._modules[equal[0]] if equal else mod
        module, key = Module(tvm.ir.save_json(mod)), self.key.row
        workload = Workload(_tvm.structural_hash(mod), rows.name(module), rows.name(key))
        self._modules.setdefault(rows.name(workload), mod)
        records = [
            rows.measurement(workload, *parts, measured_at=now(), host=this_host())
            for parts in measured
        ]
        self.store.add(records, workload=workload, module=module, key=key)

    def _workloads(self) -> dict[str, IRModule]:
        key = rows.name(self.key.row)
        found = {}
        for name, workload in self.store.all(Workload, "WHERE key = ?", (key,)).items():
            module = self.store.row(Module, workload.module)
            if module is not None:
                if name not in self._modules:
                    self._modules[name] = tvm.ir.load_json(module.text)
                found[name] = self._modules[name]
        return found

    def _tuning_record(self, record: Record, workload: Any) -> Any:
        trace, run_secs, args_info = (
            json.loads(text) for text in (record.trace, record.run_secs, record.args_info)
        )
        return ms.database.TuningRecord.from_json(
            [trace, run_secs, self._target, args_info], workload
        )


_NO_LIMIT = 1 << 62
