"""A server runs what clients send it, one session at a time, each in a process of its own.

`python -m needle_tvm server` starts one. TVM's own (tvm.exec.rpc_server) uses the same protocol,
but a session whose process dies by a signal ends its listening thread for good, and a session whose
client has gone may run for ever.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from needle_tvm.errors import RemoteError
from needle_tvm.lower import libraries
from needle_tvm.process.processes import die_with_parent, signals_held
from needle_tvm.process.scratch import scratch_folder
from needle_tvm.tune.remote.door import Door
from needle_tvm.tune.remote.protocol import (
    PUT,
    UPDATE_INFO,
    TrackerClient,
    match_key,
    show_address,
)

_PING_SECONDS = 2.0  # how often a free server checks that the tracker still knows it
_UNUSED_SECONDS = 8.0  # after this long, an offer that a client took but has not used is made anew
_LEAVING_SECONDS = 2.0  # how long a session may take to end once its client has gone
_RETRY_SECONDS = 1.0  # between attempts to reach the tracker
_STOPPING = signal.SIGINT, signal.SIGTERM


class Server:
    """Serves the clients of one tracker, for ever.

    `about` (a JSON object) describes this machine to clients; `report` is called with lines for
    whoever watches the server.
    """

    def __init__(
        self,
        listener: socket.socket,
        tracker: tuple[str, int],
        key: str,
        *,
        about: dict[str, Any],
        report: Callable[[str], None],
    ) -> None:
        self._listener, self._address, self._key = listener, tracker, key
        self._door = Door(listener)
        self._about, self._report = json.dumps(about), report
        self._tracker: TrackerClient | None = None
        self._word = ""  # the word that the next client must show; empty: no offer is made

    def run(self) -> NoReturn:
        """Serve until interrupted; a session in progress is then ended."""
        try:
            with scratch_folder("needle-server-") as scratch:
                while True:
                    connection, seconds = self._next_client()
                    with connection, suppress(OSError):
                        self._session(connection, seconds, scratch)
        finally:
            self._door.close()
            self._listener.close()
            self._leave_tracker()

    def _next_client(self) -> tuple[socket.socket, float]:
        """Return the next client with the right word, and its time limit in seconds.

        The limit is infinite if the client asks for none.
        """
        offered, asked, trouble = 0.0, time.monotonic(), ""
        while True:
            try:
                tracker = self._registered()
                if not self._word:
                    self._word, offered = match_key(self._key), time.monotonic()
                    port = self._listener.getsockname()[1]
                    tracker.ask(PUT, self._key, [port, self._word], self._own_host())
                sockets = [tracker.socket, *self._door.sockets()]
                left = asked + _PING_SECONDS - time.monotonic()
                seconds = max(0.0, min(left, self._door.seconds_left()))
                readable = select.select(sockets, [], [], seconds)[0]
                client = self._door.admit(self._word, self._key)
                if client is not None:
                    self._word = ""
                    connection, options = client
                    return connection, _time_limit(options)
                # Also if strangers keep coming: the tracker may have gone meanwhile.
                if tracker.socket in readable or time.monotonic() >= asked + _PING_SECONDS:
                    asked = time.monotonic()
                    if tracker.holds(self._word):
                        offered = asked
                    elif asked > offered + _UNUSED_SECONDS:
                        self._word = ""
            except (RemoteError, TimeoutError) as error:
                if str(error) != trouble:  # said once, however long it lasts
                    trouble = str(error)
                    self._report(f"{error}; trying again")
                self._leave_tracker()
                time.sleep(_RETRY_SECONDS)

    def _registered(self) -> TrackerClient:
        """Return the connection to the tracker, made anew if it was lost."""
        if self._tracker is None:
            self._tracker = TrackerClient(self._address)
            address = (self._own_host(), self._listener.getsockname()[1])
            self._tracker.ask(UPDATE_INFO, {"key": f"server:{self._key}", "addr": address})
            self._report(f"registered at the tracker {show_address(*self._address)}")
        return self._tracker

    def _leave_tracker(self) -> None:
        if self._tracker is not None:
            self._tracker.close()
        self._tracker, self._word = None, ""

    def _own_host(self) -> str | None:
        """Return the host at which clients find this server; None: the address the tracker sees."""
        host = str(self._listener.getsockname()[0])
        return None if host in ("0.0.0.0", "::") else host

    def _session(self, connection: socket.socket, seconds: float, scratch: Path) -> None:
        """Serve one client in a process of its own, and make sure that it ends."""
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            parent, child, ended = os.getpid(), 0, False
            try:
                with signals_held(*_STOPPING):
                    child = os.fork()
                    if child == 0:
                        self._serve(connection, folder, parent)
                    with suppress(OSError):  # the child does the same; one of them is first
                        os.setpgid(child, child)
                ended = _wait(child, connection, seconds)
            except (KeyboardInterrupt, SystemExit):  # the client must no longer find us listening
                self._listener.close()
                raise
            finally:
                if child:
                    with suppress(ProcessLookupError):
                        os.killpg(child, signal.SIGKILL)
                    _, status = os.waitpid(child, 0)
            code = os.waitstatus_to_exitcode(status)
            if not ended:
                said = "RPCSessionTimeoutError: the session was ended after {seconds:g} s"
                self._tell(connection, said.format(seconds=seconds))
            elif code:
                how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
                self._report(f"a session's process was ended by {how}")
                self._tell(connection, f"the session's process was ended by {how}")

    def _serve(self, connection: socket.socket, folder: str, parent: int) -> NoReturn:
        """Run the child's side of a session."""
        try:
            os.setpgid(0, 0)
            for number in _STOPPING:
                signal.signal(number, signal.SIG_DFL)
            die_with_parent(parent)
            self._listener.close()
            if self._tracker is not None:
                self._tracker.close()
            os.chdir(folder)
            libraries.serve_session(connection.fileno(), folder, self._about)
            os._exit(0)
        finally:
            os._exit(1)

    def _tell(self, connection: socket.socket, reason: str) -> None:
        """Tell a client, if it is still connected, why its session ended."""
        with suppress(OSError):
            if not _gone(connection):
                libraries.end_session(connection.fileno(), reason)


def _wait(child: int, connection: socket.socket, seconds: float) -> bool:
    """Whether the session's process ended, or its client left, within its time."""
    deadline = time.monotonic() + seconds
    leaving = False
    poller = select.poll()
    process = os.pidfd_open(child)
    try:
        poller.register(process, select.POLLIN)
        poller.register(connection, select.POLLRDHUP)
        while (left := deadline - time.monotonic()) > 0:
            events = dict(poller.poll(min(left, 3600.0) * 1000))
            if process in events:
                return True
            if connection.fileno() in events:  # it ends by itself, unless the candidate hangs
                poller.unregister(connection)
                leaving = True
                deadline = min(deadline, time.monotonic() + _LEAVING_SECONDS)
        return leaving
    finally:
        os.close(process)


def _gone(connection: socket.socket) -> bool:
    poller = select.poll()
    poller.register(connection, select.POLLRDHUP)
    return bool(poller.poll(0))


def _time_limit(options: list[str]) -> float:
    for option in options:
        if option.startswith("-timeout="):
            with suppress(ValueError):
                seconds = float(option.removeprefix("-timeout="))
                if seconds > 0:
                    return seconds
    return float("inf")
