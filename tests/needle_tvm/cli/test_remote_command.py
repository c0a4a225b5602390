"""`python -m needle_tvm tracker` and `server` listen on loopback by default and end when told."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import psutil
import pytest

from needle_tvm.errors import RemoteError
from needle_tvm.tune.remote import measure as remote
from needle_tvm.tune.remote.protocol import parse_address
from tests.needle_tvm.tune.remote.remote_machines import (
    Machines,
    calls,
    candidate,
    request,
    write_gate,
)
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="servers need Linux")


@pytest.fixture
def machines():
    with Machines() as started:
        yield started


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "needle_tvm", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def listening(service):
    """The addresses on which a service's processes listen."""
    process = psutil.Process(service.process.pid)
    connections = [
        connection
        for each in (process, *process.children(recursive=True))
        for connection in each.net_connections()
    ]
    return {c.laddr.ip for c in connections if c.status == psutil.CONN_LISTEN}


def test_only_this_machine_reaches_them_unless_told_otherwise(machines):
    tracker = machines.tracker()
    (server,) = machines.servers(tracker, 1)
    for service in (tracker, server):
        assert listening(service) == {"127.0.0.1"}
        assert not any("security" in line for line in service.said)
    open_ = machines.start("tracker", "--host", "0.0.0.0", "--port", "0")
    assert "no authentication" in open_.wait_for("security")
    assert listening(open_) == {"0.0.0.0"}


@pytest.mark.parametrize("name", ["tracker", "server"])
def test_the_help_has_the_security_note(name, capsys):
    from needle_tvm.__main__ import main

    with pytest.raises(SystemExit):
        main([name, "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "no authentication" in text and "trusted networks only" in text
    assert "127.0.0.1" in text


class Busy:
    """A server on which a candidate hangs, and the client that waits for it."""

    def __init__(self, machines, folder):
        self.folders = scratch()
        self.tracker = machines.tracker()
        (self.server,) = machines.servers(self.tracker, 1)
        path = candidate(folder / "hangs.so", calls("sleep", 1000))
        place = {"tracker": self.tracker.address, "key": "local"}
        asked = request(path, write_gate(folder / "gate"), **place)
        process = psutil.Process(self.server.process.pid)
        idle = process.children()
        self.answers = []
        self.client = threading.Thread(
            target=lambda: self.answers.append(remote.attempt(asked)), daemon=True
        )
        self.client.start()
        assert until(lambda: len(process.children()) > len(idle))
        self.below = process.children(recursive=True)

    def check_gone(self):
        """Check that the server is gone and its client knows."""
        assert psutil.wait_procs(self.below, timeout=PATIENCE)[1] == []
        assert until(lambda: scratch() <= self.folders)
        self.client.join(timeout=PATIENCE)
        assert self.answers and self.answers[0]["living"] is False, self.answers


def scratch():
    return set(Path(tempfile.gettempdir()).glob("needle-server-*"))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_end_them_and_all_below(machines, tmp_path, number, code):
    busy = Busy(machines, tmp_path)
    for service in (busy.server, busy.tracker):
        service.process.send_signal(number)
        assert service.process.wait(timeout=PATIENCE) == code
        assert "Traceback" not in service.process.stderr.read()
    busy.check_gone()


def test_a_session_ends_with_a_killed_server(machines, tmp_path):
    busy = Busy(machines, tmp_path)
    busy.server.process.kill()
    busy.check_gone()


def test_a_taken_port_is_one_line():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for arguments in (
            ("tracker", "--port", str(port)),
            ("server", "--tracker", "127.0.0.1:9", "--key", "k", "--port", str(port)),
        ):
            done = run(*arguments)
            assert done.returncode == 1 and done.stdout == ""
            (line,) = done.stderr.splitlines()
            assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in line


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("server", "--key", "k"), "--tracker"),
        (("server", "--tracker", "127.0.0.1:9190"), "--key"),
        (("server", "--tracker", "nowhere", "--key", "k"), "'nowhere': must be HOST:PORT"),
        (("server", "--tracker", "127.0.0.1:1", "--key", "a b"), "'a b'"),
        (("server", "--tracker", "127.0.0.1:1", "--key", "k", "--threads", "0"), "0 is below 1"),
        (("server", "--tracker", "192.0.2.1:9190", "--key", "k"), "--host 127.0.0.1"),
        (("tracker", "--port", "x"), "'x' is not a port"),
        (("tracker", "--port", "65536"), "'65536' is not a port"),
    ],
)
def test_bad_arguments_are_one_line_and_exit_2(arguments, text, capsys):
    from needle_tvm.__main__ import main

    try:
        code = main(arguments)
    except SystemExit as error:
        code = error.code
    assert code == 2
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert text in line and captured.out == ""


def test_what_is_not_the_protocol_ends_no_tracker(machines):
    tracker = machines.tracker()
    magic = (0x2F271).to_bytes(4, "little")
    for sent in (
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        magic + b"\xff\xff\xff\xff",
        magic + b"\x02\x00\x00\x00{}",
        magic + b"\x02\x00\x00\x00[]",
        magic + b"\x03\x00\x00\x00[3]",
        magic + b"\x0a\x00\x00\x00[5, {}, 1]",
        magic + b"\x04\x00\x00\x00\xff\xfe\xfd\xfc",
    ):
        with socket.create_connection(parse_address(tracker.address), timeout=10) as connection:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1024):
                pass
    with pytest.raises(RemoteError, match="no server has the key 'k'"):
        remote.check_tracker(tracker.address, "k")
    assert tracker.process.poll() is None
