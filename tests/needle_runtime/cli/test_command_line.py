"""Exit codes and one-line errors for every way in which an app can end."""

import os
import signal
import sys
from pathlib import Path

import pytest

from needle_runtime.errors import ArtifactError, EvaluationError, TargetError, UsageError
from needle_runtime.process import command_line as cli
from needle_tvm import terminal
from needle_tvm.__main__ import main


def raising(error):
    def run():
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (UsageError("--x: no"), 2, "--x: no"),
        (TargetError("target 'z': unknown"), 2, "target 'z': unknown"),
        (EvaluationError("b differs from a"), 1, "b differs from a"),
        (ArtifactError("/a: damaged"), 1, "/a: damaged"),
        (PermissionError(13, "Permission denied", "/a/b"), 1, "/a/b: Permission denied"),
        (ValueError("two\n  lines"), 1, "ValueError: two lines (NEEDLE_DEBUG=1 shows where)"),
        (KeyError("name"), 1, "KeyError: name (NEEDLE_DEBUG=1 shows where)"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_errors_are_one_line(capsys, monkeypatch, error, code, text):
    monkeypatch.delenv("NEEDLE_DEBUG", raising=False)
    assert cli.guarded("app", raising(error)) == code
    out = capsys.readouterr()
    assert (out.out, out.err) == ("", f"app: error: {text}\n")


@pytest.mark.parametrize("kind", [KeyboardInterrupt, ValueError])
def test_what_is_said_as_frames_are_freed_stands_above_the_error(capsys, kind):
    class Talks:
        def __del__(self):
            sys.stderr.write("freed\n")

    def run():
        try:
            talks = Talks()  # noqa: F841  (held by this frame, as a block builder of TVM's is)
            raise kind("first")
        except kind as error:
            raise kind("second") from error

    assert cli.guarded("app", run) != 0
    assert [line.split(":")[0] for line in capsys.readouterr().err.splitlines()] == ["freed", "app"]


def test_debugging_shows_where(capsys, monkeypatch):
    monkeypatch.setenv("NEEDLE_DEBUG", "1")
    assert cli.guarded("app", raising(ValueError("no"))) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.endswith("app: error: ValueError: no (NEEDLE_DEBUG=1 shows where)\n")


def test_sigterm_unwinds_and_its_handler_is_put_back():
    before = signal.getsignal(signal.SIGTERM)
    unwound = []

    def run():
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            unwound.append(True)

    with pytest.raises(SystemExit) as caught:
        cli.guarded("app", run)
    assert caught.value.code == 128 + signal.SIGTERM
    assert unwound
    assert signal.getsignal(signal.SIGTERM) is before


def test_progress_says_each_step_once_where_there_is_no_terminal(capsys):
    with terminal.progress() as report:
        for step in ("one", "one", "two"):
            report(0, 1, step)
    assert capsys.readouterr().err == "one\ntwo\n"
    with terminal.progress(quiet=True) as report:
        report(0, 1, "one")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("path", "folder", "message"),
    [
        ("{}", False, "is a folder, not a file"),
        ("{}/file", True, "is not a folder"),
        ("{}/file/below", False, "is not a folder"),
        ("/proc/x", False, "cannot be written"),
        ("/proc/x", True, "cannot be written"),
        ("{}/" + "x" * 300, False, "cannot be written"),
    ],
)
def test_what_cannot_be_written_is_said_before_the_work(tmp_path, path, folder, message):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=message):
        cli.check_writable(Path(path.format(tmp_path)), folder=folder)
    assert os.listdir(tmp_path) == ["file"]


def test_what_can_be_written_is_left_as_it_is(tmp_path):
    (tmp_path / "file").write_text("mine")
    for name, folder in (("file", False), ("new/below", False), ("new", True), ("", True)):
        cli.check_writable(tmp_path / name, folder=folder)
    assert os.listdir(tmp_path) == ["file"] and (tmp_path / "file").read_text() == "mine"


def test_positional_arguments_may_stand_behind_options(capsys):
    parser = cli.Parser(prog="app")
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run")
    run.add_argument("path")
    run.add_argument("inputs", nargs="*")
    run.add_argument("--random", action="store_true")
    run.rest = "inputs"
    for words in ("run p --random a b", "run p a --random b", "run p a b --random"):
        found = parser.parse_args(words.split())
        assert (found.path, found.inputs, found.random) == ("p", ["a", "b"], True)
    with pytest.raises(SystemExit):
        parser.parse_args(["run", "p", "--other", "a"])
    assert "unrecognized arguments: --other" in capsys.readouterr().err


def test_the_version_is_told(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("needle-dl ")
