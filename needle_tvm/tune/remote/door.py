"""Admit clients to a server; a slow client does not block the others. Imports no TVM.

`server.Server` asks it for the next client. A client sends TVM's magic number, the length of what
follows, and "client:" with the word it was given and its options. It has one deadline for all of
that. Only a few clients may wait: when one more arrives, the one that has waited longest is sent
away, because a legitimate client is through in a moment.
"""

from __future__ import annotations

import socket
import struct
import time
from contextlib import suppress

from needle_tvm.tune.remote.protocol import SESSION_MAGIC, SESSION_MISMATCH, keep_alive

ROOM = 8  # clients that wait at a time
SECONDS = 5.0  # deadline of a client, counted from its arrival

_HEAD = struct.Struct("<ii")  # the magic number, and the length of the rest
_LONGEST = 4096  # bytes of a word with its options


class Door:
    """The clients that have connected to a listening socket and not shown their word yet."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._listener.setblocking(False)
        self._waiting: list[_Client] = []  # the longest-waiting first

    def sockets(self) -> list[socket.socket]:
        """Return the sockets to wait on until `admit` has something to do."""
        return [self._listener, *(client.connection for client in self._waiting)]

    def seconds_left(self) -> float:
        """Return the seconds until the first deadline; infinite if nobody waits."""
        return min((client.deadline for client in self._waiting), default=float("inf")) - _now()

    def admit(self, word: str, key: str) -> tuple[socket.socket, list[str]] | None:
        """Return the next client that has shown `word`, with its options; None if there is none.

        The client is told that this is a server of `key`, and its socket is set to blocking. All
        other waiting clients are then sent away, because the word is used. Never waits itself.
        """
        self._let_in()
        for client in list(self._waiting):
            try:
                said = client.read()
                if said is None:
                    continue
                shown, *options = said.split() or [""]
                if shown != f"client:{word}":
                    client.connection.send(struct.pack("<i", SESSION_MISMATCH))
                    raise ConnectionError("a client with another word")
                name = f"server:{key}".encode()
                client.connection.send(_HEAD.pack(SESSION_MAGIC, len(name)) + name)
                client.connection.setblocking(True)
                keep_alive(client.connection)
            except OSError:
                self._send_away(client)
                continue
            self._waiting.remove(client)
            self.close()
            return client.connection, options
        for client in list(self._waiting):
            if client.deadline <= _now():
                self._send_away(client)
        return None

    def close(self) -> None:
        """Send every waiting client away."""
        for client in list(self._waiting):
            self._send_away(client)

    def _let_in(self) -> None:
        with suppress(BlockingIOError, ConnectionError):  # no more, or a client that is gone
            while True:
                connection, _ = self._listener.accept()
                connection.setblocking(False)
                self._waiting.append(_Client(connection))
                if len(self._waiting) > ROOM:
                    self._send_away(self._waiting[0])

    def _send_away(self, client: _Client) -> None:
        self._waiting.remove(client)
        client.connection.close()


class _Client:
    """A client, and what it has sent so far."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.deadline = _now() + SECONDS
        self._data = b""

    def read(self) -> str | None:
        """Return everything the client says, or None if the rest is still to come.

        Raises OSError if it is not a client, or has gone.
        """
        while (left := self._wanted() - len(self._data)) > 0:
            try:
                data = self.connection.recv(left)  # no more: what follows belongs to the session
            except BlockingIOError:
                return None
            if not data:
                raise ConnectionError("the connection was closed")
            self._data += data
        return self._data[_HEAD.size :].decode(errors="replace")

    def _wanted(self) -> int:
        """Return the bytes that the client has to send, as far as known."""
        if len(self._data) < _HEAD.size:
            return _HEAD.size
        magic, size = _HEAD.unpack(self._data[: _HEAD.size])
        if magic != SESSION_MAGIC or not 0 < size <= _LONGEST:
            raise ConnectionError("not a client of TVM's RPC")
        return _HEAD.size + size


def _now() -> float:
    return time.monotonic()
