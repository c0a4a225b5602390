"""A signal that arrives during a fork is handled after it, and not lost."""

import signal
import subprocess
import sys
import textwrap

import pytest

from tests.waiting import PATIENCE

_PROGRAM = """
    import os, signal
    from needle_tvm.process.processes import signals_held

    def arrives():
        os.kill(os.getpid(), signal.{name})

    def stop(number, frame):
        raise SystemExit(number)

    signal.signal(signal.SIGTERM, stop)
    os.register_at_fork(after_in_parent=arrives)
    child = 0
    try:
        {held}:
            child = os.fork()
            if child == 0:
                os._exit(0)
            print("within", flush=True)
        print("beyond", flush=True)
    except (KeyboardInterrupt, SystemExit) as error:
        print(type(error).__name__, signal.getsignal(signal.SIGTERM) is stop, flush=True)
    finally:
        print(os.waitpid(child, 0)[1])
"""


def _said(name, held="with signals_held(signal.SIGINT, signal.SIGTERM)"):
    program = textwrap.dedent(_PROGRAM.format(name=name, held=held))
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    return done.stdout.split("\n")[:-1]


@pytest.mark.parametrize(
    ("name", "error"), [("SIGINT", "KeyboardInterrupt"), ("SIGTERM", "SystemExit")]
)
def test_a_signal_during_a_fork_is_handled_at_the_end_of_the_block(name, error):
    assert _said(name) == ["within", f"{error} True", "0"]


def test_python_alone_loses_it():
    """The reason for it: should Python mend this, `signals_held` can go."""
    assert _said("SIGINT", held="if True") == ["within", "beyond", "0"]


def test_several_signals_and_none():
    from needle_tvm.process.processes import signals_held

    seen = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    try:
        with signals_held(signal.SIGUSR1):
            signal.raise_signal(signal.SIGUSR1)
            signal.raise_signal(signal.SIGUSR1)
            assert seen == []
        assert seen == [signal.SIGUSR1] * 2
        with signals_held(signal.SIGUSR1):
            pass
        with pytest.raises(KeyError), signals_held(signal.SIGUSR1):
            raise KeyError  # the handlers are put back
        signal.raise_signal(signal.SIGUSR1)
        assert len(seen) == 3
    finally:
        signal.signal(signal.SIGUSR1, before)
