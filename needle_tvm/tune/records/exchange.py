"""Import and export TVM's own JSON databases, line by line, whatever they hold.

The commands `records import` and `records export` use it. TVM reads such a pair of files as a whole
or, if a line is cut or blank, not at all, sometimes with a crash. Here Python checks each line
first, then TVM reads it in another process, and an unusable line is reported and left out.
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from needle_tvm.artifact.files import read_at_most, regular_size
from needle_tvm.errors import RecordsError
from needle_tvm.process import atomic
from needle_tvm.process.child import Child, ChildError, Messages
from needle_tvm.tune.records import rows
from needle_tvm.tune.records.rows import GATED, MEASURED, KeyRow, Module, Record, Workload

if TYPE_CHECKING:
    from needle_tvm.tune.records.store import Store

WORKLOADS, RECORDS = "database_workload.json", "database_tuning_record.json"

_LINE_SECONDS = 60.0  # TVM's time for one line; the first includes its start


@dataclass
class Import:
    """The result of an import: lines read, new records, and lines left out.

    `bad` holds (file, line number from 1, why).
    """

    records: int = 0
    added: int = 0
    bad: list[tuple[str, int, str]] = field(default_factory=list)


def import_json(store: Store, workloads: Path, records: Path) -> Import:
    """Import the records of one of TVM's JSON databases into `store`, as measured.

    The files do not say which versions wrote them, so the records are stored under the versions
    installed here, and are served only after they have passed a gate here. Importing again changes
    nothing. Raises RecordsError if a file cannot be read or the store cannot be written.
    """
    done = Import()
    modules: dict[int, str] = {}
    hashes: dict[int, str] = {}
    for number, text in enumerate(_lines(workloads)):
        try:
            hashes[number], modules[number] = _workload_line(text)
        except ValueError as error:
            done.bad.append((workloads.name, number + 1, str(error)))
    reader = _Reader(modules, hashes)
    found: dict[tuple[int, str], list[Record]] = {}
    try:
        for number, text in enumerate(_lines(records)):
            try:
                index, parts = _record_line(text)
                if index not in modules:
                    raise ValueError(f"its workload, line {index + 1}, cannot be used")
                answer = reader.read(index, parts)
            except ValueError as error:
                done.bad.append((records.name, number + 1, str(error)))
                continue
            done.records += 1
            module, key = Module(modules[index]), KeyRow(answer["key"])
            workload = Workload(hashes[index], rows.name(module), rows.name(key))
            parts = [answer[part] for part in ("trace", "run_secs", "args_info")]
            record = rows.measurement(workload, *parts)
            found.setdefault((index, answer["key"]), []).append(record)
    finally:
        reader.close()
    for (index, text), of_workload in found.items():
        module, key = Module(modules[index]), KeyRow(text)
        workload = Workload(hashes[index], rows.name(module), rows.name(key))
        done.added += store.add(of_workload, workload=workload, module=module, key=key)
    return done


def _lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file with any contents, except for a blank last line."""
    try:
        data = read_at_most(path, regular_size(path))
    except OSError as error:
        raise RecordsError(f"{path}: cannot be read ({error.strerror or error})") from error
    for line in data.split(b"\n")[: None if data[-1:] not in (b"\n", b"") else -1]:
        yield line.decode(errors="replace")


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("is no JSON" if text.strip() else "is blank") from None


def _workload_line(text: str) -> tuple[str, str]:
    """Return the structural hash and the module's JSON in a line of the workloads' file."""
    match _json(text):
        case [str(structural_hash), str(encoded)]:
            pass
        case _:
            raise ValueError("is no workload")
    try:
        data = base64.b64decode(encoded, validate=True)
        (length,) = struct.unpack_from("<Q", data)
        module = data[8:].decode()
    except (binascii.Error, struct.error, UnicodeDecodeError):
        raise ValueError("its module cannot be decoded") from None
    if length != len(data) - 8 or not isinstance(graph := _json(module), dict):
        raise ValueError("its module is cut")
    if not {"root_index", "nodes"} <= set(graph):
        raise ValueError("its module is none of TVM's")
    return structural_hash, module


def _record_line(text: str) -> tuple[int, list[Any]]:
    """Return the workload's index and the four parts of a line of the records' file."""
    match _json(text):
        case [bool(), *_]:
            pass
        case [int(index), [list(trace), run_secs, dict(target), args_info]] if index >= 0:
            return index, [trace, run_secs, target, args_info]
    raise ValueError("is no tuning record")


class _Reader:
    """TVM in a process of its own, restarted when a line crashes it."""

    def __init__(self, modules: dict[int, str], hashes: dict[int, str]) -> None:
        self._modules, self._hashes = modules, hashes
        self._child: Child | None = None
        self._sent: set[int] = set()

    def read(self, index: int, parts: list[Any]) -> dict[str, Any]:
        """Return the record as TVM reads it. Raises ValueError with the reason if it cannot."""
        if self._child is None:
            self._sent.clear()
            self._child = Child(
                "importer", "needle_tvm.tune.records.exchange:serve", {}, timeout=_LINE_SECONDS
            )
        try:
            if index not in self._sent:
                answer = self._child.ask(
                    index=index, module=self._modules[index], hash=self._hashes[index]
                )
                self._sent.add(index)
                if "bad" in answer:
                    raise ValueError(answer["bad"])
            answer = self._child.ask(index=index, record=parts)
        except ChildError as error:
            self.close()
            raise ValueError(f"TVM failed on it ({error})") from error
        if "bad" in answer:
            raise ValueError(answer["bad"])
        return answer

    def close(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None


def serve(setup: dict[str, Any], messages: Messages) -> Iterator[dict[str, Any]]:
    """The service of `_Reader`: receives modules and their records, returns what TVM reads."""
    from needle_tvm._tvm.names import make_target, ms, structural_hash, tvm
    from needle_tvm.tune.records.keys import Key

    workloads: dict[int, Any] = {}
    for message in messages:
        index = message["index"]
        try:
            if "module" in message:
                module = tvm.ir.load_json(message["module"])
                if structural_hash(module) != message["hash"]:
                    raise ValueError("its workload's hash is not its module's")
                workloads[index] = ms.database.Workload(module)
                yield {}
                continue
            if index not in workloads:
                raise ValueError("its workload's module cannot be used")
            workload = workloads[index]
            record = ms.database.TuningRecord.from_json(message["record"], workload)
            trace, run_secs, _, args_info = record.as_json()
            expected = ms.arg_info.ArgInfo.from_entry_func(workload.mod, False)
            if args_info and args_info != [info.as_json() for info in expected]:
                raise ValueError("its arguments are not its workload's")
            key = Key.of(make_target(message["record"][2])).text
            answer = {"key": key, "trace": trace, "run_secs": run_secs, "args_info": args_info}
            json.dumps(answer)
        except Exception as error:  # whatever TVM raises, the line is at fault
            lines = str(error).strip().splitlines() or [type(error).__name__]
            yield {"bad": lines[-1][:200]}
        else:
            yield answer


def export_json(
    store: Store, folder: Path, key: str, states: Sequence[str] = (MEASURED, GATED)
) -> int:
    """Write the records under the named key as one of TVM's JSON databases; return their number.

    A database holds one key, because TVM answers from it whatever the target. Raises RecordsError
    if the folder already has a database, or if it cannot be written; no partial file is left under
    the names that TVM reads. Writes nothing if there are no such records.
    """
    for name in (WORKLOADS, RECORDS):
        if (folder / name).exists():
            raise RecordsError(f"{folder / name}: exists; it was not touched")
    row = store.row(KeyRow, key)
    if row is None:
        raise RecordsError(f"{store.path}: has no key {key}")
    target = json.loads(row.text)["target"]
    workload_lines: list[Any] = []
    record_lines: list[Any] = []
    for name, workload in store.all(Workload, "WHERE key = ?", (key,)).items():
        module = store.row(Module, workload.module)
        records = store.all(Record, "WHERE workload = ?", (name,))
        chosen = [record for record in records if store.state(record) in states]
        if module is None or not chosen:
            continue
        for record in sorted(chosen):
            texts = (records[record].trace, records[record].run_secs, records[record].args_info)
            trace, run_secs, args_info = map(json.loads, texts)
            index = len(workload_lines)
            record_lines.append([index, [trace, run_secs, target, args_info]])
        data = module.text.encode()
        encoded = base64.b64encode(struct.pack("<Q", len(data)) + data).decode()
        workload_lines.append([workload.structural_hash, encoded])
    if not record_lines:
        return 0
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # The workloads first, because records refer to them.
        for name, lines in ((WORKLOADS, workload_lines), (RECORDS, record_lines)):
            text = "".join(rows.canonical(line) + "\n" for line in lines)
            atomic.write_file(folder / name, text.encode())
    except OSError as error:
        raise RecordsError(f"{folder}: cannot be written ({error.strerror})") from error
    return len(record_lines)
