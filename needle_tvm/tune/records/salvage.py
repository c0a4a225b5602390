"""Read rows out of a damaged SQLite file, page by page, without SQLite.

`opening` recovers stores with it. SQLite gives up on a table if one page on the way to its rows is
damaged. This module reads every page that looks like a table leaf by itself, and accepts a row only
if its name fits its values (`rows.verified`), so it never returns a false row, whatever the file
holds. The formats are SQLite's: https://www.sqlite.org/fileformat2.html, sections 1.6, 2.1 and 4.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from needle_tvm.tune.records import rows
from needle_tvm.tune.records.rows import KINDS, Row

_PAGE_SIZE = 4096  # of the stores we create: for files whose header is lost
_TABLE_LEAF = 0x0D
_WAL_HEADER, _FRAME_HEADER = 32, 24
_INTEGER_WIDTHS = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}


@dataclass
class Wal:
    """A write-ahead log: frames in order, each (page number, page), and what is wrong with it.

    The first `sound` frames are those that SQLite will apply: finished transactions.
    """

    frames: list[tuple[int, bytes]] = field(default_factory=list)
    sound: int = 0
    damage: str | None = None


def read_wal(data: bytes) -> Wal:
    """Return the frames of a log, including those behind a damaged one.

    A log that simply ends, or that ends in frames of an unfinished transaction (its writer was
    killed), is not damaged. A log with a finished transaction behind a frame that fails its
    checksum is: SQLite would drop that transaction silently.
    """
    wal = Wal()
    if len(data) < _WAL_HEADER + _FRAME_HEADER:
        return wal
    magic, _, page_size, _, salt1, salt2, sum1, sum2 = struct.unpack(">8I", data[:_WAL_HEADER])
    order = ">" if magic & 1 else "<"
    header_fits = magic | 1 == 0x377F0683 and _checksum(order, data[:24], 0, 0) == (sum1, sum2)
    if not header_fits:
        page_size = _PAGE_SIZE
        if len(data) >= _WAL_HEADER + _FRAME_HEADER + page_size:
            wal.damage = "the header of its write-ahead log does not fit its checksum"
    running, intact = (sum1, sum2), header_fits
    step = _FRAME_HEADER + page_size
    for start in range(_WAL_HEADER, len(data) - step + 1, step):
        head, page = data[start : start + _FRAME_HEADER], data[start + _FRAME_HEADER : start + step]
        number, size, frame_salt1, frame_salt2, *sums = struct.unpack(">6I", head)
        if header_fits and (frame_salt1, frame_salt2) != (salt1, salt2):
            # It predates the log's last restart, or is damaged; the frames behind it decide.
            running, intact = (sums[0], sums[1]), False
            continue
        fits = _checksum(order, page, *_checksum(order, head[:8], *running)) == tuple(sums)
        if fits and size and not intact:
            wal.damage = "a frame of its write-ahead log does not fit its checksum"
        intact = intact and fits
        running = (sums[0], sums[1])
        wal.frames.append((number, page))
        if intact and size:
            wal.sound = len(wal.frames)
    return wal


def _checksum(order: str, data: bytes, sum1: int, sum2: int) -> tuple[int, int]:
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for i in range(0, len(words) - 1, 2):
        sum1 = (sum1 + words[i] + sum2) & 0xFFFFFFFF
        sum2 = (sum2 + words[i + 1] + sum1) & 0xFFFFFFFF
    return sum1, sum2


def salvage(main: bytes, wal: bytes) -> dict[str, Row]:
    """Return every intact row of a store's file and its write-ahead log, by name.

    The file is read twice: as it is, and with the log applied. A row whose text spans several pages
    is whole in one of the two, unless it is damaged.
    """
    page_size = _page_size(main)
    before = _pages(main, page_size)
    after = {**before, **_latest(read_wal(wal).frames, page_size)}
    return {**_rows(before, before, page_size), **_rows(after, after, page_size)}


def salvage_tail(main: bytes, wal: Wal) -> dict[str, Row]:
    """Return every intact row in the frames of a log that SQLite will not apply.

    They belong to a transaction whose process was killed while writing, or to the last one, whose
    end is damaged. The two look alike, and a row is true in both.
    """
    page_size = _page_size(main)
    tail = _latest(wal.frames[wal.sound :], page_size)
    return _rows(tail, {**_pages(main, page_size), **_latest(wal.frames, page_size)}, page_size)


def _pages(main: bytes, page_size: int) -> dict[int, bytes]:
    return {
        number + 1: main[number * page_size : (number + 1) * page_size]
        for number in range(len(main) // page_size)
    }


def _latest(frames: list[tuple[int, bytes]], page_size: int) -> dict[int, bytes]:
    return {number: page for number, page in frames if len(page) == page_size}


def _rows(leaves: Mapping[int, bytes], pages: Mapping[int, bytes], size: int) -> dict[str, Row]:
    """Return the intact rows of the leaves among these pages; `pages` holds the overflow pages."""
    found: dict[str, Row] = {}
    for cells in _leaf_rows(leaves, pages, size):
        for kind in KINDS:
            row = rows.verified(kind, _as_stored(kind, cells))
            if row is not None:
                found[cells[0]] = row
    return found


def _as_stored(kind: type[Row], cells: list[Any]) -> list[Any]:
    """Turn `seconds` back into a float: SQLite stores a REAL without a fraction as an integer."""
    columns = rows.COLUMNS[kind.table]
    if "seconds" in columns and len(cells) == len(columns) + 1:
        at = 1 + columns.index("seconds")
        if isinstance(cells[at], int):
            return [*cells[:at], float(cells[at]), *cells[at + 1 :]]
    return cells


def _page_size(main: bytes) -> int:
    if main[:16] == b"SQLite format 3\0":
        size = int.from_bytes(main[16:18], "big")
        if 512 <= size <= 32768 and size & (size - 1) == 0:
            return size
    return _PAGE_SIZE


def _leaf_rows(
    leaves: Mapping[int, bytes], pages: Mapping[int, bytes], page_size: int
) -> Iterator[list[Any]]:
    for number, page in leaves.items():
        at = 100 if number == 1 else 0
        if page[at : at + 1] != bytes([_TABLE_LEAF]):
            continue
        count = int.from_bytes(page[at + 3 : at + 5], "big")
        for i in range(min(count, page_size // 4)):
            pointer = int.from_bytes(page[at + 8 + 2 * i : at + 10 + 2 * i], "big")
            try:
                yield _decode(_payload(pages, page, pointer, page_size))
            except (IndexError, KeyError, ValueError, struct.error):
                continue  # this cell is damaged, but its neighbours may not be


def _payload(pages: Mapping[int, bytes], page: bytes, at: int, usable: int) -> bytes:
    """Return the bytes of one cell, gathered from its overflow pages."""
    length, at = _varint(page, at)
    _, at = _varint(page, at)  # the row id
    if length > len(pages) * usable:
        raise ValueError("a cell is longer than the file")
    local = length
    if length > usable - 35:
        least = (usable - 12) * 32 // 255 - 23
        local = least + (length - least) % (usable - 4)
        if local > usable - 35:
            local = least
    payload = bytearray(page[at : at + local])
    if length > local:
        following = int.from_bytes(page[at + local : at + local + 4], "big")
        while len(payload) < length:  # every step adds to it, or raises
            overflow = pages[following]
            if len(overflow) != usable:
                raise ValueError("a page is cut")
            payload += overflow[4 : 4 + length - len(payload)]
            following = int.from_bytes(overflow[:4], "big")
    if len(payload) != length:
        raise ValueError("a cell is cut")
    return bytes(payload)


def _decode(payload: bytes) -> list[Any]:
    """Return the values of one row."""
    header_length, at = _varint(payload, 0)
    kinds = []
    while at < header_length:
        kind, at = _varint(payload, at)
        kinds.append(kind)
    cells: list[Any] = []
    for kind in kinds:
        if kind == 0:
            cells.append(None)
        elif kind in _INTEGER_WIDTHS:
            width = _INTEGER_WIDTHS[kind]
            cells.append(int.from_bytes(payload[at : at + width], "big", signed=True))
            at += width
        elif kind == 7:
            cells.append(struct.unpack(">d", payload[at : at + 8])[0])
            at += 8
        elif kind in (8, 9):
            cells.append(kind - 8)
        elif kind >= 13 and kind % 2:
            length = (kind - 13) // 2
            if at + length > len(payload):
                raise ValueError("a value is cut")
            cells.append(payload[at : at + length].decode())
            at += length
        else:
            raise ValueError("no value of ours")
    if not cells:
        raise ValueError("an empty row")
    return cells


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for i in range(8):
        byte = data[at + i]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + i + 1
    return value << 8 | data[at + 8], at + 9
