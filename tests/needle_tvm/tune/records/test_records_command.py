"""The command line of records."""

import contextlib
import json
import subprocess
import sys

import pytest

from needle_tvm import __main__ as program
from needle_tvm.tune.records.store import FILE, Store
from tests.needle_tvm.tune.records.committing import commit, scaled


def records_cli(capsys, *arguments):
    """(exit code, stdout, stderr) of `python -m needle_tvm records ...`."""
    code = None
    with contextlib.suppress(SystemExit):
        code = program.main(["records", *map(str, arguments)])
    out = capsys.readouterr()
    return code, out.out, out.err


def test_the_command_line(capsys, database, target, store, tmp_path):
    for n in (8, 9):
        commit(database, scaled(n), target, 1e-3 * n, 2e-3 * n, None)
    one, two = store.path, tmp_path / "two"
    _, out, _ = records_cli(capsys, "list", "--store", one, "--json")
    listed = json.loads(out)
    assert [(each["right"], each["rejected"]) for each in listed["kernels"]] == [(2, 1)] * 2
    assert {each["arguments"] for each in listed["kernels"]} == {
        f"float32({n}, {n}) float32({n}, {n})" for n in (8, 9)
    }
    code, out, _ = records_cli(capsys, "list", "--store", one)
    assert code == 0 and "2 right, 1 rejected" in out and "llvm x86-64-v3 2" in out
    assert "6 trials, 3.0 s" in out

    kernel = listed["kernels"][0]["kernel"]
    _, out, _ = records_cli(capsys, "show", kernel[:10], "--store", one, "--json")
    best, _, failed = json.loads(out)["trials"]
    assert best["seconds"] == listed["kernels"][0]["best_seconds"] and not best["rejected"]
    assert failed["rejected"].startswith("crash")
    store.reject(best["trial"], "wrong: at [0]")
    code, out, _ = records_cli(capsys, "show", best["trial"], "--store", one, "--json")
    shown = json.loads(out)
    assert code == 0 and shown["kernel"] == kernel and shown["trace"]
    assert [each["reason"] for each in shown["rejections"]] == ["wrong: at [0]"]
    assert records_cli(capsys, "show", best["trial"][:12], "--store", one)[1].count("\n") > 5

    _, out, _ = records_cli(capsys, "merge", one, "--store", two, "--json")
    assert json.loads(out)["new"] == {"kernel": 2, "trial": 6, "rejection": 1}
    _, out, _ = records_cli(capsys, "merge", one, "--store", two)
    assert "0 new trials, 0 new kernels" in out


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["list", "--store", "{here}/none"], 1, "there is no record store"),
        (["show", "zz", "--store", "{store}"], 2, "at least 4 hex digits"),
        (["show", "00000000", "--store", "{store}"], 2, "no trial or kernel begins with this"),
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


@pytest.mark.parametrize("arguments", [[], ["frob"], ["merge"]])
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


def test_damage_is_told_in_one_line_and_the_rest_is_listed(capsys, store, database, target):
    commit(database, scaled(8), target, 1e-3, 2e-3)
    store.close()
    file = store.path / FILE
    data = file.read_bytes()
    file.write_bytes(data[:-60] + b"#" + data[-59:])
    code, out, err = records_cli(capsys, "list", "--store", store.path)
    assert code == 0 and "1 right, 0 rejected" in out
    assert err.count("\n") == 1 and "1 damaged line not used" in err
