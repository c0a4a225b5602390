"""The status of a search: figures, the line, the bar and JSON, without TVM."""

import io
import json
import re
import time
from dataclasses import replace

import pytest
import rich.console

from needle_runtime.process import command_line as cli
from needle_tvm import terminal
from needle_tvm.tune.status import Status, clock, shortened

LONG = "fused_" + "transpose7_transpose8_add8_rsqrt3_multiply6_" * 3

BEST = {"fused_dense_relu": 12.3e-6, "fused_conv2d": 100e-6, "reshape": None}
STATUS = Status(BEST, 37, 256, 12.4, 92.0, "fused_dense_relu")


@pytest.mark.parametrize(
    ("trials", "budget", "seconds", "limit", "left", "spent"),
    [
        (37, 256, 12.4, None, 219 * 12.4 / 37, 37 / 256),
        (37, 256, 12.4, 60.0, 47.6, 12.4 / 60),
        (37, 256, 12.4, 600.0, 219 * 12.4 / 37, 37 / 256),
        (37, None, 12.4, 60.0, 47.6, 12.4 / 60),
        (37, None, 12.4, None, None, None),
        (0, 256, 0.0, None, None, 0),
        (0, 256, 3.0, 60.0, 57.0, 0.05),
        (256, 256, 80.0, None, 0, 1),
        (300, 256, 80.0, 60.0, 0, 1),
        (0, 0, 0.0, None, 0, 1),
    ],
)
def test_what_is_left_of_the_budget(trials, budget, seconds, limit, left, spent):
    status = Status({}, trials, budget, seconds, limit)
    assert status.left == (None if left is None else pytest.approx(left))
    assert status.spent == (None if spent is None else pytest.approx(spent))


def test_trials_of_an_earlier_run_took_none_of_this_ones_time():
    status = Status({}, 40, 100, 10.0, resumed=20)
    assert status.left == pytest.approx(60 * 0.5)
    assert replace(status, resumed=40).left is None
    assert replace(status, resumed=40, budget_seconds=25.0).left == 15.0
    assert replace(status, trials=100, resumed=100).left == 0


def test_the_line():
    assert str(replace(STATUS, budget_seconds=None)) == (
        "tuned: 37 of 256 trials, 0:12, 1:13 left; fused_dense_relu 12.3 us"
    )
    assert str(Status(BEST, 1, None, 61.0, None, "reshape")) == "tuned: 1 trial, 1:01; reshape"
    assert str(Status(BEST, 9, 9, 1.0, resumed=4)).startswith("tuned: 9 of 9 trials (4 resumed),")
    long = Status({LONG: 1.0}, 1, 2, 1.0, None, LONG)
    assert "\n" not in str(long) and len(str(long)) < 120


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (59.6, "1:00"), (80, "1:20"), (3599, "59:59"), (3723, "1:02:03")],
)
def test_clock(seconds, text):
    assert clock(seconds) == text


def test_shortened_names_keep_both_ends():
    for width in range(6, len(LONG) + 5):
        short = shortened(LONG, width)
        assert len(short) <= width
        head, dots, tail = short.partition("..")
        assert not dots or (LONG.removeprefix("fused_").startswith(head) and LONG.endswith(tail))
    assert shortened("fused_conv2d", 8) == "conv2d"


def test_a_status_travels():
    assert Status(**json.loads(json.dumps(vars(STATUS), allow_nan=False))) == STATUS


class Terminal:
    """A stand-in for rich's Console on a terminal."""

    def __init__(self, monkeypatch):
        self.out, real = io.StringIO(), rich.console.Console
        settings = {"force_terminal": True, "width": 100, "height": 20, "color_system": None}
        monkeypatch.setattr(
            rich.console, "Console", lambda **_: real(file=self.out, **settings, _environ={})
        )

    def frames(self):
        """The texts written between two moves of the cursor to the start of a frame."""
        text = re.sub(r"\x1b\[(?:\?25[lh]|2K|\dm|0m)", "", self.out.getvalue())
        return [frame.replace("\x1b[1A", "") for frame in text.split("\r")]


def test_a_terminal_shows_a_bar(monkeypatch):
    terminal = Terminal(monkeypatch)
    with terminal.progress() as report:
        report(0, 3, "[no] markup")
        time.sleep(0.2)
        report(2, 3, replace(STATUS, budget_seconds=None))
        time.sleep(0.2)
        report(2, 3, "checking parity")
    frames = terminal.frames()
    assert any("[no] markup" in frame for frame in frames)
    assert any("tuned: 37 of 256 trials, 0:12, 1:13 left" in frame for frame in frames)
    assert any("checking parity" in frame for frame in frames)


def test_elsewhere_a_line_says_what_changed(monkeypatch, capsys):
    now = [100.0]
    monkeypatch.setattr(cli.time, "monotonic", lambda: now[0])

    def at(trials, best, seconds):
        now[0] = 100 + seconds
        report(0, 1, Status({"dense": best}, trials, 99, seconds, None, "dense"))

    with terminal.progress() as report:
        report(0, 1, "tuned: searching")
        at(1, None, 0)  # the first
        at(2, None, 1)  # too soon
        at(3, 9e-6, 1.5)  # faster
        at(4, 9e-6, 1.6)
        at(5, 8e-6, 1.7)  # faster
        at(6, 8e-6, 3.8)  # two seconds on
        at(7, 8e-6, 4)  # the last before something else
        report(0, 1, "checking parity")
        at(8, 8e-6, 4.1)  # the very last
    lines = capsys.readouterr().err.splitlines()
    counts = [re.match(r"tuned: (\d+) of 99 trials, ", line) for line in lines]
    assert [m and int(m[1]) for m in counts] == [None, 1, 3, 5, 6, 7, None, 8]
    assert lines[3].endswith("dense 8.00 us")


def test_quiet_shows_nothing(capsys):
    with terminal.progress(quiet=True) as report:
        report(0, 1, STATUS)
    assert capsys.readouterr().err == ""
