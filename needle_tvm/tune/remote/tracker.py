"""A tracker: servers offer themselves to it, and clients ask it for the next free one.

`python -m needle_tvm tracker` runs one. TVM's own (tvm.exec.rpc_tracker) uses the same protocol,
but keeps connections that never say anything, drops a peer whose first four bytes arrive in two
parts, listens on every interface unless told otherwise and takes the next port if its own is taken;
it needs tornado. This one needs the standard library alone.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import json
import socket
import struct
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from needle_tvm.tune.remote.protocol import (
    FAIL,
    LARGEST,
    PENDING_KEYS,
    PING,
    PUT,
    REQUEST,
    SUCCESS,
    SUMMARY,
    TRACKER_MAGIC,
    UPDATE_INFO,
    frame,
    keep_alive,
)

_ROOM = 64  # connections that have not yet identified as peers
_SECONDS = 5.0  # to identify, and to finish a message


@dataclass(eq=False)
class _Peer:
    """A connection: a server's, which makes offers, or a client's, which waits for one."""

    host: str
    writer: asyncio.StreamWriter
    info: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Offer:
    peer: _Peer
    host: str
    port: int
    word: str  # the word that the client must show the server


class Tracker:
    """The connected peers, the free servers and the waiting clients."""

    def __init__(self) -> None:
        self._strangers: list[asyncio.StreamWriter] = []  # have not yet identified as peers
        self._peers: set[_Peer] = set()
        self._free: dict[str, list[_Offer]] = defaultdict(list)  # first in, first out
        self._waiting: dict[str, list[tuple[int, int, _Peer]]] = defaultdict(list)  # heaps
        self._numbers = itertools.count()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection to its end.

        A violation of the protocol ends the connection, and so does a message that begins and does
        not finish in time. Peers may be silent between messages.
        """
        peer = _Peer(writer.get_extra_info("peername")[0], writer)
        keep_alive(writer.get_extra_info("socket"))
        try:
            self._strangers.append(writer)
            if len(self._strangers) > _ROOM:  # a legitimate peer is through in a moment
                self._strangers.pop(0).close()
            magic = await asyncio.wait_for(reader.readexactly(4), _SECONDS)
            if struct.unpack("<i", magic)[0] != TRACKER_MAGIC or writer not in self._strangers:
                return
            self._strangers.remove(writer)
            writer.write(struct.pack("<i", TRACKER_MAGIC))
            self._peers.add(peer)
            while True:
                begun = await reader.readexactly(1)
                message = await asyncio.wait_for(_rest(reader, begun), _SECONDS)
                answer = self._answer(peer, json.loads(message))
                if answer is not None:
                    writer.write(frame(answer))
                await writer.drain()
        except (EOFError, OSError, asyncio.CancelledError):  # the peer, or the tracker, is going
            pass
        except asyncio.TimeoutError:  # an OSError from Python 3.11 on
            pass
        except (ValueError, TypeError, LookupError, AttributeError):  # not what the protocol says
            pass
        except (OverflowError, RecursionError):  # of Infinity and of lists in lists
            pass
        finally:
            self._forget(peer)
            writer.close()

    def _answer(self, peer: _Peer, message: list[Any]) -> Any:
        """Return the reply to a message; None if it comes later, with a free server."""
        code = message[0]
        if code == PUT:
            key, (port, word) = message[1:3]
            host = message[3] if len(message) > 3 and message[3] else peer.host
            self._free[str(key)].append(_Offer(peer, str(host), int(port), str(word)))
            peer.writer.write(frame(SUCCESS))
            self._hand_out(str(key))
            return None
        if code == REQUEST:
            key, _user, priority = message[1:4]
            entry = (-int(priority), next(self._numbers), peer)
            heapq.heappush(self._waiting[str(key)], entry)
            self._hand_out(str(key))
            return None
        if code == PENDING_KEYS:
            return [o.word for offers in self._free.values() for o in offers if o.peer is peer]
        if code == UPDATE_INFO:
            key, (host, port) = str(message[1]["key"]), message[1]["addr"]
            peer.info = {"key": key, "addr": [str(host or peer.host), int(port)]}
            return SUCCESS
        if code == SUMMARY:
            return [SUCCESS, self._summary()]
        return SUCCESS if code == PING else FAIL

    def _hand_out(self, key: str) -> None:
        free, waiting = self._free[key], self._waiting[key]
        while free and waiting:
            offer, (_, _, client) = free.pop(0), heapq.heappop(waiting)
            client.writer.write(frame([SUCCESS, [offer.host, offer.port, offer.word]]))
        for table in (self._free, self._waiting):  # anybody may name keys, so they must not pile up
            if not table[key]:
                del table[key]

    def _forget(self, peer: _Peer) -> None:
        """Withdraw a connection's offers and requests."""
        if peer.writer in self._strangers:
            self._strangers.remove(peer.writer)
        self._peers.discard(peer)
        for offers in self._free.values():
            offers[:] = [offer for offer in offers if offer.peer is not peer]
        for waiting in self._waiting.values():
            waiting[:] = [entry for entry in waiting if entry[2] is not peer]
            heapq.heapify(waiting)

    def _summary(self) -> dict[str, Any]:
        queues = {
            key: {"free": len(self._free.get(key, ())), "pending": len(self._waiting.get(key, ()))}
            for key in {*self._free, *self._waiting}
        }
        servers = [p.info for p in self._peers if p.info.get("key", "").startswith("server:")]
        return {"queue_info": queues, "server_info": servers}


async def _rest(reader: asyncio.StreamReader, begun: bytes) -> bytes:
    """Return the message after its first byte. Raises ValueError for a length out of range."""
    (size,) = struct.unpack("<i", begun + await reader.readexactly(3))
    if not 0 < size <= LARGEST:
        raise ValueError(f"a message of {size} bytes")
    return await reader.readexactly(size)


def run(listener: socket.socket) -> None:
    """Serve on a listening socket until interrupted."""

    async def serve() -> None:
        server = await asyncio.start_server(Tracker().serve, sock=listener)
        # Not serve_forever: from Python 3.12 on its end waits until every server has gone.
        while server.is_serving():
            await asyncio.sleep(3600)

    asyncio.run(serve())
