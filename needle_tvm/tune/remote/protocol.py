"""TVM's tracker protocol, and the client's side of it. Imports no TVM.

Tracker, server and client all use it. A connection begins with the magic number from both sides.
Then each message is its length (four bytes, little endian) and a JSON list [code, ...], answered by
a JSON value. From tvm/rpc/tracker.py and tvm/rpc/base.py of TVM 0.27, whose servers and clients
work with ours.
"""

from __future__ import annotations

import ipaddress
import json
import os
import secrets
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any

from needle_tvm.errors import RemoteError, UsageError

TRACKER_MAGIC = 0x2F271
SESSION_MAGIC, SESSION_MISMATCH = 0xFF271, 0xFF271 + 2
FAIL, SUCCESS, PING, STOP, PUT, REQUEST, UPDATE_INFO, SUMMARY, PENDING_KEYS = range(-1, 8)
LARGEST = 1 << 20  # bytes of one message
REPLY_SECONDS = 10.0  # a tracker answers everything at once, except a request for a server

SECURITY = (
    "TVM's RPC has no authentication and no encryption, and runs whatever code it is sent: "
    "use it on trusted networks only"
)


def parse_address(text: str) -> tuple[str, int]:
    """Return (host, port) of "HOST:PORT", with an IPv6 host in brackets. Raises UsageError."""
    host, _, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    digits = port.isascii() and port.isdigit() and len(port) < 10
    if not bare or (":" in bare and bare == host) or not digits or not 0 < int(port) < 1 << 16:
        raise UsageError(f"tracker {text!r}: must be HOST:PORT, such as 127.0.0.1:9190")
    return bare, int(port)


def show_address(host: str, port: int) -> str:
    """Return "HOST:PORT", as `parse_address` reads it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address of this name."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket, on any free port if `port` is 0. Raises RemoteError."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        number = error.errno or 0  # an unknown name has a number below 0
        reason = os.strerror(number) if number > 0 else error.strerror or str(error)
        raise RemoteError(f"cannot listen on {show_address(host, port)}: {reason}") from None


def keep_alive(connection: socket.socket) -> None:
    """Make a connection end within about half a minute after the other machine has gone."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def receive(connection: socket.socket, size: int, deadline: float) -> bytes:
    """Read exactly `size` bytes.

    Raises ConnectionError if the other side closes first, and TimeoutError if they have not all
    arrived by `deadline`, a time of `time.monotonic()`.
    """
    data = b""
    while len(data) < size:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        connection.settimeout(left)
        chunk = connection.recv(size - len(data))
        if not chunk:
            raise ConnectionError("the connection was closed")
        data += chunk
    return data


def frame(message: Any) -> bytes:
    """Encode a message for the connection."""
    data = json.dumps(message).encode()
    return struct.pack("<i", len(data)) + data


def check_key(key: str) -> None:
    """Raise UsageError for a key that TVM's protocol cannot carry."""
    if not key or len(key) > 100 or not key.isprintable() or " " in key or ":" in key:
        raise UsageError(f"key {key!r}: must be 1 to 100 characters with no space and no colon")


def match_key(key: str) -> str:
    """Return a random word that admits one client, once, to the server that offered it."""
    return f"{key}:{secrets.token_hex(8)}"


class TrackerClient:
    """A connection to a tracker, for a client or a server. A context manager.

    Every method raises RemoteError, naming the tracker, if the tracker cannot be reached, is not a
    tracker or does not answer; the connection is then unusable.
    """

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address
        deadline = time.monotonic() + REPLY_SECONDS
        try:
            self.socket = socket.create_connection(address, timeout=REPLY_SECONDS)
        except OSError as error:
            raise self._error(f"cannot be reached ({error.strerror or error})") from None
        try:
            keep_alive(self.socket)
            self.socket.sendall(struct.pack("<i", TRACKER_MAGIC))
            (magic,) = struct.unpack("<i", receive(self.socket, 4, deadline))
        except OSError:
            magic = None
        if magic != TRACKER_MAGIC:
            self.socket.close()
            raise self._error("what listens there is not a TVM RPC tracker")

    def __enter__(self) -> TrackerClient:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def ask(self, *message: Any, seconds: float = REPLY_SECONDS) -> Any:
        """Return the tracker's answer. Raises TimeoutError if it takes longer than `seconds`."""
        deadline = time.monotonic() + seconds
        try:
            self.socket.settimeout(seconds)
            self.socket.sendall(frame(message))
            (size,) = struct.unpack("<i", receive(self.socket, 4, deadline))
            if not 0 < size <= LARGEST:
                raise ValueError(f"a message of {size} bytes")
            return json.loads(receive(self.socket, size, deadline))
        except TimeoutError:
            raise
        except OSError as error:
            raise self._error(f"lost ({error.strerror or error})") from None
        except (ValueError, RecursionError) as error:
            raise self._error(f"sent what is not of its protocol ({error})") from None

    def servers(self) -> dict[str, list[str]]:
        """Return the addresses of the registered servers, including busy ones, by key."""
        found: dict[str, list[str]] = {}
        try:
            _code, summary = self.ask(SUMMARY)
            for entry in summary["server_info"]:
                key = str(entry["key"]).removeprefix("server:")
                found.setdefault(key, []).append(show_address(*entry["addr"]))
        except TimeoutError:
            raise self._error(f"no answer within {REPLY_SECONDS:g} s") from None
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise self._error(f"sent what is not of its protocol ({error})") from None
        return found

    def request(self, key: str, seconds: float) -> tuple[str, int, str]:
        """Return (host, port, match key) of the next free server; TimeoutError if none comes."""
        answer = self.ask(REQUEST, key, "", 1, seconds=seconds)
        if not isinstance(answer, Sequence) or len(answer) != 2 or answer[0] != SUCCESS:
            raise self._error(f"sent what is not of its protocol ({answer!r})")
        try:
            host, port, word = answer[1]
            return str(host), int(port), str(word)
        except (TypeError, ValueError, OverflowError) as error:
            raise self._error(f"sent what is not of its protocol ({error})") from None

    def holds(self, word: str) -> bool:
        """Whether this connection's offer with the match key `word` is still open."""
        answer = self.ask(PENDING_KEYS)
        if not isinstance(answer, list):
            raise self._error(f"sent what is not of its protocol ({answer!r})")
        return word in answer

    def _error(self, what: str) -> RemoteError:
        return RemoteError(f"tracker {show_address(*self.address)}: {what}")
