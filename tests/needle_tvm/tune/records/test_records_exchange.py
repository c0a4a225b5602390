"""TVM's JSON databases, and the command line of records."""

import base64
import contextlib
import json
import struct
import subprocess
import sys

import pytest

from needle_tvm import __main__ as program
from needle_tvm._tvm.names import ms
from needle_tvm.errors import RecordsError
from needle_tvm.tune.records import exchange
from needle_tvm.tune.records.database import RecordDatabase
from needle_tvm.tune.records.keys import Key
from needle_tvm.tune.records.rows import MEASURED, KeyRow, Record
from needle_tvm.tune.records.store import Store
from tests.needle_tvm.tune.records.committing import commit, scaled


@pytest.fixture
def database_files(tmp_path, target):
    """A JSON database that TVM wrote: two workloads of two records each."""
    folder = tmp_path / "json"
    folder.mkdir()
    database = ms.database.JSONDatabase(work_dir=str(folder))
    for n in (8, 9):
        commit(database, scaled(n), target, 1e-3 * n, 2e-3 * n)
    return folder


def records_cli(capsys, *arguments):
    """(exit code, stdout, stderr) of `python -m needle_tvm records ...`."""
    code = None
    with contextlib.suppress(SystemExit):
        code = program.main(["records", *map(str, arguments)])
    out = capsys.readouterr()
    return code, out.out, out.err


def as_text(database):
    return sorted(
        json.dumps([record.workload.as_json()[0], record.as_json()])
        for record in database.get_all_tuning_records()
    )


def test_import_and_export_give_back_what_tvm_wrote(store, target, database_files, tmp_path):
    files = [database_files / name for name in (exchange.WORKLOADS, exchange.RECORDS)]
    done = exchange.import_json(store, *files)
    assert (done.records, done.added, done.bad) == (4, 4, [])
    assert set(map(store.state, store.all(Record))) == {MEASURED}  # served only after a gate
    tuning = RecordDatabase(store, Key.of(target), [MEASURED])
    assert as_text(tuning) == as_text(ms.database.JSONDatabase(work_dir=str(database_files)))
    (key,) = store.all(KeyRow)
    assert exchange.export_json(store, tmp_path / "out", key) == 4
    exported = ms.database.JSONDatabase(work_dir=str(tmp_path / "out"))
    assert as_text(exported) == as_text(tuning)
    files = [tmp_path / "out" / name for name in (exchange.WORKLOADS, exchange.RECORDS)]
    done = exchange.import_json(store, *files)
    assert (done.records, done.added, done.bad) == (4, 0, [])
    with pytest.raises(RecordsError, match="exists; it was not touched"):
        exchange.export_json(store, tmp_path / "out", key)


def encode(text):
    return base64.b64encode(struct.pack("<Q", len(text)) + text).decode()


def test_bad_lines_are_left_out_and_named(store, database_files, target):
    workloads, records = (database_files / n for n in (exchange.WORKLOADS, exchange.RECORDS))
    good_workloads = workloads.read_text().splitlines()
    good = records.read_text().splitlines()
    first = json.loads(good[0])
    crash = b'{"root_index": 0, "nodes": [{"type": "ir.IRModule", "data": {}}]}'

    def changed(index, value, at=None):
        part = json.loads(good[0])
        (part[1] if at is None else part[1][at])[index] = value
        return json.dumps(part)

    bad_workloads = {
        3: ('["1", "AAAA"]', "cannot be decoded"),
        4: ("", "is blank"),
        5: (json.dumps(["1", json.loads(good_workloads[0])[1]]), None),
        6: (json.dumps(["1", encode(crash)]), None),
        7: (good_workloads[0][:200], "is no JSON"),
    }
    bad_records = {
        5: ("", "is blank"),
        6: ("null", "is no tuning record"),
        7: (good[0][: len(good[0]) // 2], "is no JSON"),
        8: ("\x00\x01\ufffd", "is no JSON"),
        9: (json.dumps([0, [[], [], {}, []]]), ""),
        10: (json.dumps([99, first[1]]), "line 100, cannot be used"),
        11: (json.dumps([2, first[1]]), "line 3, cannot be used"),
        12: (json.dumps([4, first[1]]), "hash is not"),
        13: (json.dumps([5, first[1]]), ""),  # may crash TVM
        14: (json.dumps([1, first[1]]), "arguments are not"),
        15: (changed(2, {"kind": "nope"}), ""),
        16: (changed(1, ["fast"]), ""),
        17: (changed(0, [[["Nope", [], [], []]], []]), "Nope"),
        18: ("[" * 100_000, "is no JSON"),
    }
    lines = [*good_workloads, *(text for text, _ in bad_workloads.values())]
    workloads.write_text("\n".join(lines) + "\n")
    lines = [*good, *(text for text, _ in bad_records.values()), good[0]]
    records.write_text("\n".join(lines))  # the last line has no newline
    done = exchange.import_json(store, workloads, records)
    assert (done.records, done.added) == (5, 4)
    named = {(file, line): why for file, line, why in done.bad}
    expected = {(exchange.WORKLOADS, n): why for n, (_, why) in bad_workloads.items() if why}
    expected |= {(exchange.RECORDS, n): why for n, (_, why) in bad_records.items()}
    assert set(named) == set(expected)
    for place, why in expected.items():
        assert why in named[place] and named[place] and "\n" not in named[place]
    tuning = RecordDatabase(store, Key.of(target), [MEASURED])
    assert len(tuning.get_all_tuning_records()) == 4


def test_the_command_line(capsys, database_files, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    with (database_files / exchange.RECORDS).open("a") as file:
        file.write("garbage\n")
    code, out, err = records_cli(capsys, "import", database_files, "--store", one)
    assert code == 0 and "4 new of 4 records, 1 bad line\n" in out
    assert err == ("needle_tvm: warning: database_tuning_record.json:5: is no JSON; left out\n")
    code, out, _ = records_cli(capsys, "list", "--store", one, "--json")
    listed = json.loads(out)
    assert [entry["records"][MEASURED] for entry in listed["workloads"]] == [2, 2]
    assert {entry["arguments"] for entry in listed["workloads"]} == {
        f"float32({n}, {n}) float32({n}, {n})" for n in (8, 9)
    }
    code, out, _ = records_cli(capsys, "list", "--store", one)
    assert code == 0 and "2 measured" in out and "llvm x86-64-v3 2" in out

    workload = listed["workloads"][0]["workload"]
    _, out, _ = records_cli(capsys, "show", workload[:10], "--store", one, "--json")
    record = json.loads(out)["records"][0]["record"]
    code, out, _ = records_cli(capsys, "show", record, "--store", one, "--json")
    assert code == 0 and json.loads(out)["state"] == MEASURED and json.loads(out)["trace"]
    assert records_cli(capsys, "show", record[:12], "--store", one)[1].count("\n") > 5

    _, out, _ = records_cli(capsys, "merge", one, "--store", two, "--json")
    assert json.loads(out)["new"]["records"] == 4
    _, out, _ = records_cli(capsys, "merge", one, "--store", two)
    assert "0 new records" in out
    _, out, _ = records_cli(capsys, "prune", "--best", 1, "--store", two, "--dry-run")
    assert "2 records would be forgotten" in out
    _, out, _ = records_cli(capsys, "prune", "--best", 1, "--store", two, "--json")
    assert json.loads(out)["removed"]["records"] == 2
    _, out, _ = records_cli(capsys, "prune", "--older-than", "tvm=0.27", "--store", two)
    assert "0 records forgotten" in out
    _, out, _ = records_cli(capsys, "prune", "--older-than", "tvm=1.0", "--store", two)
    assert "2 records forgotten" in out
    code, out, _ = records_cli(capsys, "export", tmp_path / "out", "--store", one)
    assert code == 0 and "4 records" in out


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["list", "--store", "{here}/none"], 1, "there is no record store"),
        (["show", "zz", "--store", "{store}"], 2, "at least 4 hex digits"),
        (["show", "00000000", "--store", "{store}"], 2, "no record or workload begins so"),
        (["prune", "--store", "{store}"], 2, "say what to forget"),
        (["merge", "{here}/none", "--store", "{store}"], 1, "there is no record store"),
        (["import", "{here}/none", "--store", "{store}"], 2, "no such file; a JSON database"),
        (["export", "{here}/out", "--store", "{store}"], 1, "there are no records in it"),
        (["export", "{here}/out", "--store", "{here}/none"], 1, "there is no record store"),
        (["list", "--store", "{here}/file"], 1, "not a record store"),
    ],
)
def test_a_mistake_is_one_line(capsys, tmp_path, arguments, code, text):
    Store(tmp_path / "store").close()
    (tmp_path / "file").write_text("mine")
    filled = [part.format(here=tmp_path, store=tmp_path / "store") for part in arguments]
    found, out, err = records_cli(capsys, *filled)
    assert (found, out) == (code, "")
    assert text in err and err.count("\n") == 1 and err.startswith("needle_tvm: error: ")


@pytest.mark.parametrize(
    "arguments", [[], ["frob"], ["prune", "--best", "-1"], ["prune", "--older-than", "x"]]
)
def test_a_bad_argument_is_one_line(capsys, arguments):
    with pytest.raises(SystemExit) as caught:
        program.main(["records", *arguments])
    assert caught.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_command_line_needs_no_tvm_to_list(tmp_path):
    Store(tmp_path / "store").close()
    code = (
        "import sys\n"
        "from needle_tvm.__main__ import main\n"
        f"assert main(['records', 'list', '--store', {str(tmp_path / 'store')!r}]) == 0\n"
        "assert not {'tvm', 'needle'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_damage_is_told_in_one_line_and_the_rest_is_listed(capsys, tmp_path, store, tuning, target):
    commit(tuning, scaled(8), target, 1e-3, 2e-3)
    store.close()
    file = store.path / "records.sqlite3"
    data = bytearray(file.read_bytes())
    data[:4096] = bytes(4096)
    file.write_bytes(data)
    code, out, err = records_cli(capsys, "list", "--store", store.path)
    assert code == 0 and "2 measured" in out
    assert err.count("\n") == 1 and "2 intact records were recovered" in err
    (aside,) = tmp_path.glob("records.damaged-*")
    assert (aside / file.name).read_bytes() == data
