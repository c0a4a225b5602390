"""The command line of records."""

import contextlib
import json
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

from needle_tvm import __main__ as program
from needle_tvm.tune.records import rows
from needle_tvm.tune.records.rows import COLUMNS, MEASURED, Trial
from needle_tvm.tune.records.store import FILE, OLD_FILE, Store
from tests.needle_tvm.tune.records.committing import commit, scaled
from tests.needle_tvm.tune.records.record_writer import SPENT, session_of
from tests.needle_tvm.tune.records.test_records_damage import contents, rows_of


def records_cli(capsys, *arguments):
    """(exit code, stdout, stderr) of `python -m needle_tvm records ...`."""
    code = None
    with contextlib.suppress(SystemExit):
        code = program.main(["records", *map(str, arguments)])
    out = capsys.readouterr()
    return code, out.out, out.err


def old_store(path, everything, tables=tuple(COLUMNS)):
    """Make the SQLite file of an older needle, with these rows by name."""
    path.mkdir()
    with closing(sqlite3.connect(path / OLD_FILE)) as connection:
        for table in tables:
            columns = ", ".join(("digest", *COLUMNS[table]))
            connection.execute(f"CREATE TABLE {table} ({columns})")
        for name, row in everything.items():
            values = (name, *rows.values(row))
            marks = ", ".join("?" * len(values))
            connection.execute(f"INSERT INTO {row.table} VALUES ({marks})", values)
        connection.commit()
    return path / OLD_FILE


def test_a_store_of_an_older_needle_is_taken_over(capsys, tmp_path):
    """In its own folder, where no other command reads it."""
    file = old_store(tmp_path / "records", rows_of("writer", 6))
    code, out, err = records_cli(capsys, "list", "--store", file.parent)
    assert (code, out) == (1, "") and "records merge" in err and OLD_FILE in err
    before = file.read_bytes()
    code, out, err = records_cli(capsys, "merge", "--store", file.parent, file)
    assert (code, err) == (0, "") and "6 new records, 2 new workloads, 6 new trials" in out
    assert file.read_bytes() == before
    with Store(file.parent, report=pytest.fail) as store:
        assert contents(store) == rows_of("writer", 6)
        assert store.spent(session_of("writer")) == (6, 6 * SPENT)
    code, out, _ = records_cli(capsys, "merge", "--store", file.parent, file)
    assert code == 0 and "0 new records" in out


def test_what_is_intact_of_an_older_store_is_taken_over(capsys, tmp_path):
    """Also of the first ones, which had no trials."""
    everything = {n: r for n, r in rows_of("writer", 6).items() if type(r) is not Trial}
    tables = [table for table in COLUMNS if table != "trials"]
    file = old_store(tmp_path / "old", everything, tables)
    lost = next(n for n, r in everything.items() if isinstance(r, rows.Record))
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("UPDATE records SET seconds = 1e-9 WHERE digest = ?", (lost,))
        connection.commit()
    code, _, err = records_cli(capsys, "merge", "--store", tmp_path / "new", file)
    assert code == 0 and "1 damaged row not used" in err and err.count("\n") == 1
    with Store(tmp_path / "new", report=pytest.fail) as store:
        assert contents(store) == {n: r for n, r in everything.items() if n != lost}


def test_the_command_line(capsys, tuning, target, store, tmp_path):
    for n in (8, 9):
        commit(tuning, scaled(n), target, 1e-3 * n, 2e-3 * n)
    one, two = store.path, tmp_path / "two"
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


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["list", "--store", "{here}/none"], 1, "there is no record store"),
        (["show", "zz", "--store", "{store}"], 2, "at least 4 hex digits"),
        (["show", "00000000", "--store", "{store}"], 2, "no record or workload begins so"),
        (["prune", "--store", "{store}"], 2, "say what to forget"),
        (["merge", "{here}/none", "--store", "{store}"], 1, "there is no record store"),
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


def test_damage_is_told_in_one_line_and_the_rest_is_listed(capsys, store, tuning, target):
    commit(tuning, scaled(8), target, 1e-3, 2e-3)
    store.close()
    file = store.path / FILE
    data = file.read_bytes()
    file.write_bytes(data[:-60] + b"#" + data[-59:])
    code, out, err = records_cli(capsys, "list", "--store", store.path)
    assert code == 0 and "1 measured" in out
    assert err.count("\n") == 1 and "1 damaged line not used" in err
