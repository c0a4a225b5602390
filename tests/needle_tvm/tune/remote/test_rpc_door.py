"""Slow clients of servers and trackers do not make others wait, and do not pile up."""

import asyncio
import contextlib
import os
import socket
import struct
import threading
import time

import pytest

from needle_tvm.errors import RemoteError
from needle_tvm.tune.remote import door, protocol, tracker
from needle_tvm.tune.remote.door import Door

WORD = "local:0123456789abcdef"
HEAD = struct.pack("<i", protocol.SESSION_MAGIC)


def said(text):
    return HEAD + struct.pack("<i", len(text)) + text.encode()


RIGHT = said(f"client:{WORD} -timeout=3")


@pytest.fixture
def opened(monkeypatch):
    """A door, and a function that connects to it."""
    monkeypatch.setattr(door, "SECONDS", 0.5)
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        found = Door(listener)
        stack.callback(found.close)

        def connect(data=b""):
            connection = stack.enter_context(
                socket.create_connection(listener.getsockname(), timeout=10)
            )
            connection.sendall(data)
            return connection

        yield found, connect


def admitted(found, seconds=10.0):
    """The next client that the door admits, or None."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        client = found.admit(WORD, "local")
        if client is not None:
            return client
        time.sleep(0.005)
    return None


def waiting(found):
    return len(found.sockets()) - 1


def gone(connection):
    """Whether the server has closed a connection without sending anything."""
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def test_a_client_with_the_word_is_let_in(opened):
    found, connect = opened
    client = connect(RIGHT + b"and what the session begins with")
    connection, options = admitted(found)
    assert options == ["-timeout=3"] and connection.gettimeout() is None
    with connection:
        assert connection.recv(100) == b"and what the session begins with"
    assert client.recv(4) == HEAD and client.recv(100)[4:] == b"server:local"


@pytest.mark.parametrize("cut", [0, 1, 4, 7, 8, 20, len(RIGHT) - 1])
def test_a_word_may_come_in_pieces(opened, cut):
    found, connect = opened
    client = connect(RIGHT[:cut])
    assert admitted(found, 0.05) is None and waiting(found) == 1
    client.sendall(RIGHT[cut:])
    connection, _ = admitted(found)
    connection.close()


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        HEAD + struct.pack("<i", 0),
        HEAD + struct.pack("<i", -1),
        HEAD + struct.pack("<i", 5000),
        said("\udcff".encode(errors="surrogateescape").decode("latin-1")),
        said(" "),
    ],
)
def test_strangers_are_sent_away_at_once(opened, data):
    found, connect = opened
    client = connect(data)
    assert admitted(found, 0.1) is None and waiting(found) == 0
    answer = client.recv(4) if data.startswith(HEAD) and len(data) > 8 else b""
    assert answer in (b"", struct.pack("<i", protocol.SESSION_MISMATCH)) and gone(client)


def test_another_word_is_told_so(opened):
    found, connect = opened
    client = connect(said("client:local:guessed"))
    assert admitted(found, 0.1) is None
    assert client.recv(4) == struct.pack("<i", protocol.SESSION_MISMATCH) and gone(client)


def test_one_deadline_holds_for_all_that_a_client_says(opened):
    """Sending another byte does not extend it."""
    found, connect = opened
    client = connect(RIGHT[:8])
    start = time.monotonic()
    with contextlib.suppress(ConnectionError):
        for number in range(8, len(RIGHT)):
            assert admitted(found, 0.1) is None
            client.sendall(RIGHT[number : number + 1])
    assert waiting(found) == 0 and 0.4 < time.monotonic() - start < 5
    assert gone(client)


def test_slow_clients_keep_nobody_waiting(opened):
    found, connect = opened
    slow = [connect(RIGHT[:9]) for _ in range(door.ROOM)]
    assert admitted(found, 0.05) is None and waiting(found) == door.ROOM
    connect(RIGHT)
    start = time.monotonic()
    connection, _ = admitted(found)
    connection.close()
    assert time.monotonic() - start < 0.4
    assert waiting(found) == 0 and all(map(gone, slow))  # the word is valid only once


def test_only_a_few_wait_and_the_longest_leaves_first(opened):
    found, connect = opened
    slow = [connect() for _ in range(3 * door.ROOM)]
    assert admitted(found, 0.1) is None and waiting(found) == door.ROOM
    assert all(map(gone, slow[: -door.ROOM]))
    slow[-1].sendall(RIGHT)
    connection, _ = admitted(found)
    connection.close()


def test_the_server_wakes_up_for_deadlines(opened):
    found, connect = opened
    assert found.seconds_left() == float("inf")
    connect()
    assert admitted(found, 0.05) is None
    assert 0 < found.seconds_left() <= 0.5


# The tracker


async def eventually(condition):
    for _ in range(200):
        if condition():
            return True
        await asyncio.sleep(0.01)
    return False


def on_tracker(monkeypatch, test):
    """Runs `test(connect, tracker)` beside a tracker."""
    monkeypatch.setattr(tracker, "_SECONDS", 0.3)
    monkeypatch.setattr(tracker, "_ROOM", 4)

    async def run():
        served = tracker.Tracker()
        server = await asyncio.start_server(served.serve, "127.0.0.1", 0)
        writers = []

        async def connect(data=b""):
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writers.append(writer)
            writer.write(data)
            return reader, writer

        try:
            await asyncio.wait_for(test(connect, served), 30)
        finally:
            server.close()
            for writer in writers:
                writer.close()
            await eventually(lambda: not served._peers)

    asyncio.run(run())


MAGIC = struct.pack("<i", protocol.TRACKER_MAGIC)


@pytest.mark.parametrize(
    "begun", [b"", MAGIC[:3], MAGIC + b"\x05", MAGIC + struct.pack("<i", 9) + b"[7"]
)
def test_what_is_begun_and_does_not_come_ends_a_trackers_connection(monkeypatch, begun):
    async def test(connect, served):
        reader, _ = await connect(begun)
        assert (await reader.read()).startswith(MAGIC if len(begun) > 3 else b"")
        assert not served._peers and not served._strangers

    on_tracker(monkeypatch, test)


def test_silent_peers_stay(monkeypatch):
    async def test(connect, served):
        reader, writer = await connect(MAGIC)
        assert await reader.readexactly(4) == MAGIC
        await asyncio.sleep(1)
        writer.write(protocol.frame([protocol.PING]))
        assert await reader.readexactly(5) == protocol.frame(protocol.SUCCESS)
        assert len(served._peers) == 1 and not served._strangers

    on_tracker(monkeypatch, test)


def test_few_strangers_wait_at_a_tracker(monkeypatch):
    async def test(connect, served):
        monkeypatch.setattr(tracker, "_SECONDS", 20)
        slow = [await connect() for _ in range(10)]
        for reader, _ in slow[:6]:
            assert await reader.read() == b""
        assert await eventually(lambda: len(served._strangers) == 4)
        reader, writer = slow[-1]
        writer.write(MAGIC)
        assert await reader.readexactly(4) == MAGIC
        assert len(served._peers) == 1

    on_tracker(monkeypatch, test)


# A slow tracker


@pytest.mark.parametrize("answered", [b"", MAGIC])
def test_a_tracker_that_answers_byte_by_byte_is_given_up(monkeypatch, answered):
    monkeypatch.setattr(protocol, "REPLY_SECONDS", 0.5)
    stop = threading.Event()

    def drip(listener):
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(answered)
            while not stop.wait(0.1):
                connection.sendall(b"\x01")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, args=(listener,))
        thread.start()
        start = time.monotonic()
        try:
            with (
                pytest.raises(RemoteError),
                protocol.TrackerClient(listener.getsockname()) as client,
            ):
                client.servers()
            assert time.monotonic() - start < 5
        finally:
            stop.set()
            thread.join()


# A whole server


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="servers need Linux")
def test_a_server_is_there_for_its_clients_beside_slow_ones():
    from needle_tvm.lower import libraries
    from tests.needle_tvm.tune.remote.remote_machines import Machines

    with Machines() as machines, contextlib.ExitStack() as stack:
        served = machines.tracker()
        (server,) = machines.servers(served, 1)
        host, port = protocol.parse_address(server.address)
        stop = threading.Event()

        def drip(connection):
            with contextlib.suppress(OSError):
                connection.sendall(RIGHT[:8])
                while not stop.wait(0.5):
                    connection.sendall(b"x")

        slow = [
            stack.enter_context(socket.create_connection((host, port)))
            for _ in range(3 * door.ROOM)
        ]
        threads = [threading.Thread(target=drip, args=(connection,)) for connection in slow]
        for thread in threads:
            thread.start()
        try:
            for _ in range(2):
                with protocol.TrackerClient(protocol.parse_address(served.address)) as client:
                    start = time.monotonic()
                    *place, word = client.request("local", 30.0)
                    session = libraries.connect_session(*place, word, 30.0)
                    assert "processor" in libraries.about_server(session)
                    assert time.monotonic() - start < 10  # one by one they would take 5 s each
                    del session
        finally:
            stop.set()
            for thread in threads:
                thread.join()
