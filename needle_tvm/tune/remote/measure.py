"""Measure candidates on other machines, through an RPC tracker and the servers it knows.

`bench` uses `RemoteRunner` in place of its local worker. `measure` does on a server what
`tune.measure.steps.measure` does here. `RemoteRunner` does it for many candidates on all servers of
a key, and retries a candidate elsewhere when its server is lost. A session may end without an
answer because the candidate crashed or because the server went away. Another session tells the two
apart: a candidate is to blame if two sessions with it were lost on servers that still listen.

TVM's RPC has no authentication and runs whatever code it is sent: trusted networks only.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from needle_tvm.errors import RemoteError, TuningError
from needle_tvm.lower.libraries import SESSION_EXPIRED, about_server, connect_session
from needle_tvm.tune.measure.workers import CRASH, OK, TIMEOUT, Limits, Outcome, Runner, Workers
from needle_tvm.tune.remote import session as remote_session
from needle_tvm.tune.remote.protocol import TrackerClient, check_key, parse_address, show_address
from needle_tvm.words import error_line

WAIT_SECONDS = 30.0  # until a server is free
_SESSION_SECONDS = 60.0  # of one candidate on a server, unless the request says otherwise
_CONNECT_SECONDS = 10.0  # a running server lets a client in at once
_GRACE_SECONDS = 5.0  # after a session's end, for the server's message that it ended the session
_RETRY_SECONDS = 0.5  # between attempts to reach a tracker that is being restarted
_SETTLE_SECONDS = 0.2  # a server that is killed with its session may end after it
_TRIES = 3
_RPC_PREFIX = "RPCError: Error caught from RPC call: "  # precedes errors raised there

LOST = "lost"  # kind of a candidate without a lasting server: its quality is unknown

T = TypeVar("T")


class NoServerError(RemoteError):
    """No server was available in time; `busy` if the tracker has some of the key."""

    def __init__(self, message: str, busy: bool) -> None:
        super().__init__(message)
        self.busy = busy


class ServerLostError(RemoteError):
    """A session ended without an answer; `living` if its server still listens."""

    def __init__(self, message: str, living: bool) -> None:
        super().__init__(message)
        self.living = living


class SessionExpiredError(RemoteError):
    """A server ended a session at its time limit."""


def check_tracker(tracker: str, key: str) -> list[str]:
    """Return the addresses of the servers of `key` at the tracker "HOST:PORT".

    Raises UsageError for a malformed address or key, RemoteError if the tracker cannot be reached
    or has no server of this key; the error names the tracker's keys.
    """
    address = parse_address(tracker)
    check_key(key)
    with TrackerClient(address) as client:
        servers = client.servers()
    if key not in servers:
        raise RemoteError(f"tracker {tracker}: no server has the key {key!r} ({_census(servers)})")
    return sorted(servers[key])


def measure(request: Mapping[str, Any]) -> dict[str, Any]:
    """Check and time a built candidate on a server; answers as `measure.steps.measure` does.

    request: `path`, `gate`, `number`, `repeat`, `min_repeat_ms` as there; `tracker` ("HOST:PORT")
    and `key`; `seconds`, how long the session may last (default 60), and `wait`, how long to wait
    for a free server (default 30). The answer also has `server`: {"address", and what our server
    says of its machine}. Unlike on this machine, memory before an output is not checked.

    Raises RemoteError as NoServerError, ServerLostError or SessionExpiredError; TuningError for
    what the candidate raises.
    """
    seconds = float(request.get("seconds", _SESSION_SECONDS))
    host, port, word = _request_server(request)
    address = show_address(host, port)
    untaken = f"server {address} took no session"
    try:
        session = _within(
            _CONNECT_SECONDS,
            lambda: connect_session(host, port, word, seconds),
            ServerLostError(untaken, False),
        )
    except RuntimeError as error:  # no candidate has run yet: the server has just gone
        if isinstance(error, RemoteError):
            raise
        said = error_line(error).removeprefix(_RPC_PREFIX)
        raise ServerLostError(f"{untaken} ({said})", False) from error
    try:
        answer = _within(
            seconds + _GRACE_SECONDS,
            lambda: remote_session.check_and_time(session, request),
            ServerLostError(f"server {address} has gone silent", False),
        )
    except SESSION_EXPIRED:
        text = f"server {address} ended the session after {seconds:g} s"
        raise SessionExpiredError(text) from None
    except RuntimeError as error:  # the base of all of TVM's errors
        if isinstance(error, RemoteError):
            raise
        said = error_line(error).removeprefix(_RPC_PREFIX)
        if _answers(session):
            raise TuningError(f"on server {address}: {said}") from error
        text = f"server {address}: the session was lost ({said})"
        raise ServerLostError(text, _listens(host, port)) from error
    answer["server"]["address"] = address
    return answer


def attempt(request: Mapping[str, Any]) -> dict[str, Any]:
    """Service of `RemoteRunner`: {"answer"}, or a failure of `measure` that is not the candidate's.

    A failure is {"absent": text, "busy"}, {"lost": text, "living"} or {"expired": text}.
    """
    try:
        return {"answer": measure(request)}
    except NoServerError as error:
        return {"absent": str(error), "busy": error.busy}
    except ServerLostError as error:
        return {"lost": str(error), "living": error.living}
    except SessionExpiredError as error:
        return {"expired": str(error)}


class RemoteRunner(Runner):
    """Measures candidates on all servers of a key; `map` and `call` are those of Workers.

    `limits.seconds` is a candidate's time on its server, `limits.memory` the memory of a client on
    this machine. `wait` is how long a candidate waits for a free server. A context manager.

    Raises what `check_tracker` raises; `map` and `call` raise RemoteError once no server is left.
    """

    def __init__(
        self,
        tracker: str,
        key: str,
        *,
        limits: Limits,
        environment: Mapping[str, str] | None = None,
        wait: float = WAIT_SECONDS,
    ) -> None:
        self.servers = check_tracker(tracker, key)
        self._limits = limits
        self._wait = wait
        self._request = {"tracker": tracker, "key": key, "wait": wait}
        self._workers = Workers(
            "remote",
            "needle_tvm.tune.remote.measure:attempt",
            processes=max(1, len(self.servers)),
            limits=self._client_limits(limits),
            environment=environment,
        )

    def close(self, *error: object) -> None:
        """End all clients."""
        self._workers.close(*error)

    def map(
        self, requests: Sequence[Mapping[str, Any]], limits: Limits | None = None
    ) -> Iterator[tuple[int, Outcome]]:
        """Yield (index, outcome) of each request of `measure.steps.measure`, as they end."""
        allowed = limits or self._limits
        extra = {**self._request, "seconds": allowed.seconds}
        clients = self._client_limits(allowed)
        open_ = {index: _Trial() for index in range(len(requests))}
        while open_:
            order = list(open_)
            sent = [{**requests[index], **extra} for index in order]
            for place, outcome in self._workers.map(sent, clients):
                index = order[place]
                final = open_[index].judge(outcome)
                if final is not None:
                    del open_[index]
                    yield index, final

    def _client_limits(self, limits: Limits) -> Limits:
        """Return the limits of the client's own process, which also waits, connects and copies."""
        around = self._wait + 2 * _CONNECT_SECONDS + 2 * _GRACE_SECONDS
        return replace(limits, seconds=limits.seconds + around)


@dataclass
class _Trial:
    """The history of one candidate so far."""

    lost: list[str] = field(default_factory=list)
    crashes: int = 0  # lost sessions whose servers are still running
    hangs: int = 0
    waits: int = 0

    def judge(self, outcome: Outcome) -> Outcome | None:
        """Return the final outcome, or None to try again; RemoteError if no server is left."""
        value = outcome.value if outcome.kind == OK else {}
        if "answer" in value:
            return replace(outcome, value=value["answer"])
        if "expired" in value:
            return replace(outcome, kind=TIMEOUT, value=None, detail=value["expired"])
        if "absent" in value:
            self.waits += 1
            if self.waits == _TRIES or not value["busy"]:
                raise RemoteError(value["absent"])
            return None
        if "lost" in value:
            self.lost.append(value["lost"])
            self.crashes += value["living"]
        elif outcome.kind in (CRASH, TIMEOUT):  # of our own client, in which no candidate runs
            self.lost.append(outcome.detail)
            self.hangs += outcome.kind == TIMEOUT
        else:
            return outcome
        detail = "; ".join(self.lost)
        if self.crashes == 2:
            return replace(outcome, kind=CRASH, value=None, detail=detail)
        if self.hangs == 2:
            return replace(outcome, kind=TIMEOUT, value=None, detail=detail)
        if len(self.lost) == _TRIES:
            detail = f"its server was lost {_TRIES} times: {detail}"
            return replace(outcome, kind=LOST, value=None, detail=detail)
        return None


def _request_server(request: Mapping[str, Any]) -> tuple[str, int, str]:
    """Return (host, port, word) of a free server. Raises NoServerError if none comes in time."""
    tracker, key = request["tracker"], request["key"]
    address = parse_address(tracker)
    wait = float(request.get("wait", WAIT_SECONDS))
    deadline = time.monotonic() + wait
    what = ""
    busy = False
    while (left := deadline - time.monotonic()) > 0:
        try:
            with TrackerClient(address) as client:
                # Asked again now and then, because a restart may change what the tracker has.
                with suppress(TimeoutError):
                    return client.request(key, min(left, 5.0))
            with TrackerClient(address) as client:
                servers = client.servers()
                busy, what = key in servers, _census(servers)
        except RemoteError as error:
            busy, what = False, str(error)
            time.sleep(_RETRY_SECONDS)
    text = f"tracker {tracker}: no free server of key {key!r} within {wait:g} s ({what})"
    raise NoServerError(text, busy)


def _census(servers: Mapping[str, Sequence[str]]) -> str:
    keys = [f"{key!r}: {len(addresses)}" for key, addresses in sorted(servers.items())]
    return f"its servers by key: {', '.join(keys)}" if keys else "it has no servers"


def _within(seconds: float, work: Callable[[], T], late: ServerLostError) -> T:
    """Return the result of `work` or raise `late`: native calls wait for ever for a dead server."""
    results: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()

    def run() -> None:
        try:
            results.put((work(), None))
        except BaseException as error:  # raised below, by the waiting thread
            results.put((None, error))

    # The thread may never end, but the process does.
    Thread(target=run, daemon=True).start()
    try:
        result, error = results.get(timeout=seconds)
    except Empty:
        raise late from None
    if error is not None:
        raise error
    return result  # type: ignore[return-value]


def _answers(session: Any) -> bool:
    """Whether a session still answers."""
    with suppress(RuntimeError):
        about_server(session)
        return True
    return False


def _listens(host: str, port: int) -> bool:
    """Whether a server accepts connections, that is, whether its process is running."""
    time.sleep(_SETTLE_SECONDS)
    with suppress(OSError):
        socket.create_connection((host, port), timeout=_GRACE_SECONDS).close()
        return True
    return False
