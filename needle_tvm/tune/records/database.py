"""The record store as a meta_schedule database.

    database = RecordDatabase(store, Key.of(target))
    with database: ...  # TVM's search reads and writes the store

`search` hands one to TVM, and `near` reads from it. Imports TVM.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from needle_tvm._tvm import names as tvm_names
from needle_tvm._tvm.names import IRModule, Target, ms, tvm
from needle_tvm.errors import RecordsError
from needle_tvm.kernels.knob_candidates import is_noted
from needle_tvm.tir import functions
from needle_tvm.tune.records import rows
from needle_tvm.tune.records.keys import Key
from needle_tvm.tune.records.rows import (
    GATED,
    MEASURED,
    REJECTED,
    STATES,
    Module,
    Record,
    Trial,
    Verdict,
    Workload,
)
from needle_tvm.tune.records.store import Store, now, this_host

tvm_names.raised_through_tvm(RecordsError)


@tvm_names.derived_object
class RecordDatabase(ms.database.PyDatabase):
    """The records of `store` that apply to `key` and are in one of `states`.

    By default only gated records are served. If `get_top_k` is asked for more than a workload has,
    the records that `seeds` finds follow (`near.seeds`: those of near shapes). A committed record
    is on disk when the commit returns, in the state `measured`. Two modules are the same workload
    if their structural hashes are equal and TVM finds them structurally equal.

    Raises RecordsError, also from within TVM, if a commit cannot be stored, or if a record is for
    another target than the key's.
    """

    def __init__(
        self,
        store: Store,
        key: Key,
        states: Sequence[str] = (GATED,),
        seeds: Seeds | None = None,
    ) -> None:
        super().__init__()
        self.store, self.key, self.states, self.seeds = store, key, tuple(states), seeds
        self._target = key.fields["target"]
        self._modules: dict[str, IRModule] = {}  # modules of workloads compared before, by name

    def has_workload(self, mod: IRModule) -> bool:
        """Whether a workload equal to `mod` is in the store, under this key."""
        return bool(self.names(mod))

    def commit_workload(self, mod: IRModule) -> Any:
        """Store `mod` as a workload, unless an equal one is present."""
        found = self.names(mod)
        if found:
            return ms.database.Workload(self._modules[found[0]])
        workload, module = self._rows(mod)
        self.store.add(workload=workload, module=module, key=self.key.row)
        return ms.database.Workload(mod)

    def commit_tuning_record(self, record: Any) -> None:
        """Store a record, as measured now on this machine."""
        self._commit(record, lambda name: ([], []))

    def _commit(
        self, record: Any, about: Callable[[str], tuple[list[Verdict], list[Trial]]]
    ) -> str:
        """Store a record with the verdicts and trials that `about` makes for its name.

        Returns the record's name.
        """
        if record.target is not None and tvm_names.target_fields(record.target) != self._target:
            raise RecordsError(
                f"{self.store.path}: a record for {record.target} was committed to a database for "
                f"{json.dumps(self._target)}; nothing was written"
            )
        trace, run_secs, _, args_info = record.as_json()
        run_secs = None if run_secs is None else [float(seconds) for seconds in run_secs]
        workload, module = self._rows(record.workload.mod)
        row = rows.measurement(
            workload, trace, run_secs, args_info, measured_at=now(), host=this_host()
        )
        name = rows.name(row)
        verdicts, trials = about(name)
        self.store.add(
            [row],
            workload=workload,
            module=module,
            key=self.key.row,
            verdicts=verdicts,
            trials=trials,
        )
        return name

    def commit_trial(
        self,
        record: Any,
        *,
        state: str,
        detail: str,
        session: str,
        seconds: float,
        source: str,
    ) -> str:
        """Store all of one trial in one line; return the name of its record.

        `record` is a TuningRecord, with None for run_secs if the candidate did not run. `state` is
        one of rows.STATES and `detail` its reason, as in "crash: ended by SIGSEGV". `session`,
        `seconds` and `source` are those of a rows.Trial. The trial is on disk when this returns.
        Raises ValueError for a bad value, and RecordsError as a commit does.
        """
        if state not in STATES:
            raise ValueError(f"state {state!r}: must be one of {', '.join(STATES)}")
        run_secs = None if record.run_secs is None else [float(time) for time in record.run_secs]
        if rows.mean_seconds(run_secs) is None and state != REJECTED:
            raise ValueError(f"state {state!r}: a candidate that did not run can only be rejected")
        return self._commit(
            record,
            lambda name: (
                [] if state == MEASURED else [Verdict(name, state, now(), this_host(), detail)],
                [Trial(session, name, float(seconds), source)],
            ),
        )

    def commit_gated(self, record: Any) -> str:
        """Store a record that has passed the gate; return its name."""
        return self._commit(
            record, lambda name: ([Verdict(name, GATED, now(), this_host(), "")], [])
        )

    def known(self, mod: IRModule) -> dict[str, tuple[str, float | None]]:
        """Return every trace tried on `mod`, as `trace_text` writes it, with state and seconds.

        The seconds are None if it did not run. Failed ones are rejected. No search needs to try any
        of these again.
        """
        return self.store.known(self.names(mod))

    def get_top_k(self, workload: Any, top_k: int) -> list[Any]:
        """Return the fastest usable records of a workload, then seeds if there are too few.

        Only schedules are returned: TVM's search, which asks for them, cannot use a choice of
        knobs.
        """
        found = [record for _, record in self.best(workload.mod, top_k, schedules=True)]
        if self.seeds is not None and len(found) < top_k:
            found += self.seeds(self, workload.mod, top_k - len(found))
        return found

    def get_all_tuning_records(self) -> list[Any]:
        """Return every usable record under this key."""
        return [
            record
            for name in self.workloads()
            for record in self.of_workload(name, _NO_LIMIT, self.states)
        ]

    def query_tuning_record(
        self, mod: IRModule, target: Target, workload_name: str | None = None
    ) -> Any:
        """Return `mod`'s fastest usable record; None if there is none or the target differs."""
        if tvm_names.target_fields(target) != self._target:
            return None
        found = self.best(mod, 1, schedules=True)
        return found[0][1] if found else None

    def __len__(self) -> int:
        """The number of usable records under this key."""
        return sum(
            len(self.store.best([name], _NO_LIMIT, self.states)) for name in self.workloads()
        )

    def best(
        self,
        mod: IRModule,
        limit: int,
        states: Sequence[str] | None = None,
        *,
        schedules: bool = False,
    ) -> list[tuple[str, Any]]:
        """Return the fastest records of `mod` with their names in the store, for `Store.decide`.

        With `schedules`, records whose trace is a choice of knobs (`kernels.knob_candidates`) are
        left out.
        """
        states = self.states if states is None else states
        found = self._fastest(self.names(mod), limit, states, schedules)
        workload = ms.database.Workload(mod)
        return [(name, self._tuning_record(record, workload)) for name, record in found]

    def names(self, mod: IRModule) -> list[str]:
        """Return the names of the workloads equal to `mod`.

        Merged stores may hold several, which differ in the names of variables.
        """
        found = []
        for name, text in self.store.candidates(tvm_names.structural_hash(mod), self.key.row):
            if name not in self._modules:
                self._modules[name] = tvm_names.load_module(text)
            if tvm_names.structural_equal(self._modules[name], mod):
                found.append(name)
        return found

    def _rows(self, mod: IRModule) -> tuple[Workload, Module]:
        """Return the rows of `mod`'s workload, or those of the equal one in the store."""
        # They are written with every record, because `prune` may have removed them meanwhile.
        equal = self.names(mod)
        mod = self._modules[equal[0]] if equal else mod
        module = Module(tvm.ir.save_json(mod))
        workload = Workload(
            tvm_names.structural_hash(mod), rows.name(module), rows.name(self.key.row)
        )
        self._modules.setdefault(rows.name(workload), mod)
        return workload, module

    def workloads(self) -> dict[str, Workload]:
        """Return the workloads under this key by name."""
        key = rows.name(self.key.row)
        return self.store.all(Workload, lambda workload: workload.key == key)

    def module(self, name: str, workload: Workload) -> IRModule | None:
        """Return the module of the workload of this name, or None if it is damaged."""
        if name not in self._modules:
            module = self.store.row(Module, workload.module)
            if module is None:
                return None
            self._modules[name] = tvm_names.load_module(module.text)
        return self._modules[name]

    def _fastest(
        self, names: Sequence[str], limit: int, states: Sequence[str], schedules: bool
    ) -> list[tuple[str, Record]]:
        if not schedules:
            return self.store.best(names, limit, states)
        found = self.store.best(names, _NO_LIMIT, states)
        return [(name, record) for name, record in found if not is_noted(record.trace)][:limit]

    def of_workload(
        self, name: str, limit: int, states: Sequence[str], *, schedules: bool = False
    ) -> Iterator[Any]:
        """Yield the fastest records of the named workload in one of `states`; see `best`."""
        row = self.store.row(Workload, name)
        module = self.module(name, row) if row is not None else None
        if module is not None:
            workload = ms.database.Workload(module)
            for _, record in self._fastest([name], limit, states, schedules):
                yield self._tuning_record(record, workload)

    def _tuning_record(self, record: Record, workload: Any) -> Any:
        trace, run_secs, args_info = (
            json.loads(text) for text in (record.trace, record.run_secs, record.args_info)
        )
        return ms.database.TuningRecord.from_json(
            [trace, run_secs, self._target, args_info], workload
        )


def trace_text(trace: Any) -> str:
    """Return a trace in the text form of the store's records and of `RecordDatabase.known`."""
    return rows.canonical(functions.trace_fields(trace))


Seeds = Callable[[RecordDatabase, IRModule, int], list[Any]]  # for example `near.seeds`

_NO_LIMIT = 1 << 62
