"""Text from files and other machines is escaped before it is printed, and read within limits."""

import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import needle_runtime
import needle_tvm
from needle_runtime.artifact import Artifact, artifact, layout, signature
from needle_runtime.artifact.files import sha256
from needle_runtime.artifact.manifest import read_manifest, write_manifest
from needle_runtime.errors import ArtifactError, KeyFileError, SignatureError
from needle_runtime.profile import Call, Profile
from needle_runtime.text import printable
from needle_tvm import terminal
from needle_tvm.__main__ import main
from needle_tvm.tune.records import facts
from needle_tvm.tune.records.store import Store
from tests.needle_tvm.conftest import make_mlp, tensor

# Sets the window title, clears the screen, overwrites the line, writes from right to left.
HOSTILE = "a\x1b]0;title\x07\x1b[2J\x9b31m\r\u202eb\u2028"


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    path = tmp_path_factory.mktemp("exported") / "mlp"
    x = tensor(np.ones((2, 8), np.float32))
    return needle_tvm.compile(make_mlp(8, 4), x, stage="fused").export(path)


@pytest.fixture
def copied(exported, tmp_path):
    return Path(shutil.copytree(exported, tmp_path / "copy"))


def hostile(value):
    """A manifest's value with HOSTILE appended to every string."""
    if isinstance(value, str):
        return value + HOSTILE
    if isinstance(value, list):
        return [hostile(part) for part in value]
    if isinstance(value, dict):
        return {name: hostile(part) for name, part in value.items()}
    return value


def reseal(path, **changes):
    write_manifest(path, {**read_manifest(path), **changes})


def clean(text):
    assert text
    wrong = [character for character in text if not character.isprintable() and character != "\n"]
    assert not wrong, text


def test_inspect_prints_nothing_hostile(copied, capsys):
    manifest = read_manifest(copied)
    functions = manifest["functions"]
    for kind in ("inputs", "outputs", "params"):
        functions["main"][kind] = hostile(functions["main"][kind])
    reseal(
        copied,
        functions=functions,
        stage=HOSTILE,
        target={**hostile(manifest["target"]), HOSTILE: HOSTILE},
        versions={**hostile(manifest["versions"]), HOSTILE: HOSTILE},
        golden={**manifest["golden"], "source": HOSTILE},
        tuning=[{"name": HOSTILE, "chosen": "rule", "trials": 1, "rejected": {HOSTILE: 1}}],
    )
    assert main(["inspect", str(copied)]) == 0
    out, err = capsys.readouterr()
    clean(out)
    assert not err and r"\x1b]0;title\x07" in out
    assert main(["inspect", str(copied), "--json"]) == 0
    clean(out := capsys.readouterr().out)
    assert json.loads(out)["stage"] == HOSTILE  # JSON holds the full text, for programs


@pytest.mark.parametrize("command", [["verify"], ["run", "--random"], ["profile"]])
@pytest.mark.parametrize(
    "changes",
    [
        {"versions": {"tvm": HOSTILE}},
        {"target": {"kind": "llvm", "mcpu": HOSTILE, "features": [HOSTILE]}},
        {"target": {"kind": "llvm", "features": [HOSTILE]}},
    ],
)
def test_errors_say_nothing_hostile(copied, capsys, command, changes):
    reseal(copied, **changes)
    assert main([command[0], str(copied), *command[1:]]) != 0
    out, err = capsys.readouterr()
    clean(err)
    assert not out and err.count("\n") == 1 and r"\x1b[2J" in err


def test_names_of_inputs_are_said_printably(copied, capsys):
    functions = read_manifest(copied)["functions"]
    functions["main"]["inputs"][0]["name"] = HOSTILE
    reseal(copied, functions=functions)
    assert main(["run", str(copied)]) == 2
    clean(capsys.readouterr().err)
    with pytest.raises(needle_tvm.NeedleTVMError) as caught:
        needle_runtime.load(copied)(np.zeros(3))
    clean(str(caught.value))


def test_a_dtype_of_no_kind_is_an_error(copied):
    functions = read_manifest(copied)["functions"]
    functions["main"]["outputs"][0]["dtype"] = HOSTILE
    reseal(copied, functions=functions)
    with pytest.raises(ArtifactError, match=r"dtype .* is unknown") as caught:
        needle_runtime.load(copied)
    clean(str(caught.value))


def test_files_with_hostile_names_are_refused_printably(copied, tmp_path):
    (copied / HOSTILE).write_bytes(b"")
    with pytest.raises(ArtifactError, match="does not belong") as caught:
        needle_runtime.load(copied)
    clean(str(caught.value))
    write_manifest(copied, json.loads((copied / layout.MANIFEST).read_text()))
    with pytest.raises(ArtifactError, match="name of a file"):
        needle_runtime.load(copied)


def test_a_profile_prints_nothing_hostile():
    found = Profile(1.0, [[Call(HOSTILE, 0.0, 1.0, ((1,),), 4)]])
    clean(found.text())


def test_records_print_nothing_hostile(tmp_path, capsys):
    """A store may have been merged with someone else's."""
    key = json.dumps({"target": {"kind": HOSTILE}, "versions": {HOSTILE: HOSTILE}})
    kernel = facts.Kernel(HOSTILE, key, "{}")
    infos = json.dumps([["TENSOR", HOSTILE, [1]]])
    fields = {"rejected": HOSTILE, "session": HOSTILE, "measured_at": HOSTILE, "host": HOSTILE}
    trial = facts.Trial(facts.name(kernel), "[]", "[1.0]", infos, spent=0.0, **fields)
    with Store(tmp_path / "records") as store:
        name = store.add(trial, kernel)
    for command in (["list"], ["show", name], ["show", facts.name(kernel)]):
        assert main(["records", *command, "--store", str(tmp_path / "records")]) == 0
        out, err = capsys.readouterr()
        clean(out)
        assert not err and r"x1b[2J" in out


def test_progress_and_tables_show_text_as_it_is(capsys):
    text = "[red]x[/red] [/nothing] :warning: "
    with terminal.progress() as report:
        report(0, 1, text + HOSTILE)
    assert capsys.readouterr().err == text + printable(HOSTILE) + "\n"
    console = terminal.console()
    console.file = io.StringIO()
    console.print(text)
    assert console.file.getvalue().rstrip() == text.rstrip()


def test_warnings_and_tracebacks_are_printable(tmp_path):
    (tmp_path / HOSTILE).mkdir()
    code = f"import needle_runtime; needle_runtime.load({str(tmp_path / HOSTILE)!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    last = done.stderr.splitlines()[-1]
    assert "no artifact there" in last and re.search(r"\\x1b\]0;title", last)
    clean(last)


# Limits on files that are read before their signature is checked


def sparse(path, size):
    with path.open("wb") as file:
        file.truncate(size)


READ = """
import resource, sys
import needle_runtime
from needle_runtime.errors import ArtifactError
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
try:
    needle_runtime.load(sys.argv[1], require_signature=sys.argv[2] or None)
except ArtifactError as error:
    print(error)
"""


@pytest.mark.parametrize("with_key", [False, True])
def test_a_manifest_beyond_all_bounds_is_not_read(copied, tmp_path, with_key):
    key = ""
    if with_key:
        pytest.importorskip("cryptography")
        key = str(signature.generate(tmp_path / "key"))
    sparse(copied / layout.MANIFEST, 6 << 30)
    command = [sys.executable, "-c", READ, str(copied), key]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert f"manifest.json: is too long for a manifest ({6 << 30} bytes, at most" in done.stdout


def test_a_manifest_that_nobody_could_read_is_not_written(exported, tmp_path, monkeypatch):
    monkeypatch.setattr("needle_runtime.artifact.manifest.LARGEST_MANIFEST", 1000)
    with pytest.raises(ArtifactError, match=r"too long for a manifest \(\d+ bytes, at most 1000\)"):
        artifact.sign(exported, "no key is needed to find out")


@pytest.mark.parametrize("name", [layout.LIBRARY, layout.PARAMS, layout.GOLDEN])
def test_files_are_read_no_further_than_recorded(copied, name):
    """One may have changed since it was verified, too."""
    opened = Artifact.open(copied)
    sparse(copied / name, 6 << 30)
    for read in (
        lambda: opened.read(name),
        lambda: Artifact.open(copied),
        lambda: needle_runtime.load(copied),
    ):
        with pytest.raises(ArtifactError, match=f"{name}: is damaged .{6 << 30} bytes long, not"):
            read()
    recorded = opened.manifest["files"][name]
    assert sha256(copied / name, recorded["size"]) != recorded["sha256"]


def test_signatures_and_keys_are_read_no_further_than_they_are_long(copied, tmp_path):
    pytest.importorskip("cryptography")
    public = signature.generate(tmp_path / "key")
    sparse(copied / layout.SIGNATURE, 6 << 30)
    with pytest.raises(SignatureError, match="a signature has 64 bytes"):
        needle_runtime.load(copied, require_signature=public)
    (copied / layout.SIGNATURE).unlink()
    artifact.sign(copied, tmp_path / "key")
    sparse(public, 6 << 30)
    with pytest.raises(KeyFileError, match="is too long for a key"):
        needle_runtime.load(copied, require_signature=public)
