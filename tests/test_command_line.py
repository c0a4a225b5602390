"""Exit codes and one-line errors for everything that can end an app."""

import signal

import pytest

from needle_tvm import command_line as cli
from needle_tvm.errors import ArtifactError, EvaluationError, TargetError, UsageError


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
    with cli.progress() as report:
        for step in ("one", "one", "two"):
            report(0, 1, step)
    assert capsys.readouterr().err == "one\ntwo\n"
    with cli.progress(quiet=True) as report:
        report(0, 1, "one")
    assert capsys.readouterr().err == ""
