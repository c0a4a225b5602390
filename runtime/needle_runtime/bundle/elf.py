"""Reads from a shared library's ELF tables which libraries and versions it needs (gABI, "Dynamic
Section"; LSB, "Symbol Versioning"). This module uses only the standard library."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

_MACHINES = {62: "x86_64", 183: "aarch64"}  # e_machine
_LOAD, _DYNAMIC = 1, 2  # p_type
_NEEDED, _STRINGS = 1, 5  # d_tag
_DEFINITIONS, _DEFINITION_COUNT, _NEEDS, _NEED_COUNT = range(0x6FFFFFFC, 0x70000000)
_GLIBC = re.compile(r"GLIBC_(\d+)\.(\d+)(?:\.\d+)*", re.ASCII)
_RELATIVE = "GLIBC_ABI_DT_RELR"  # marks a form of relocations that glibc 2.36 introduced

Version = tuple[int, int]
_Fields = tuple[int, ...]


class Elf(NamedTuple):
    """A shared library: its `machine`, the names of `needed` libraries, the `versions` of symbols
    that each of these must define, and the versions that it has `defined` itself."""

    machine: str
    needed: tuple[str, ...]
    versions: dict[str, frozenset[str]]
    defined: frozenset[str]

    @property
    def glibc(self) -> Version:
        """The oldest version of glibc that has the needed symbols; (0, 0) if all versions do."""
        names = [name for versions in self.versions.values() for name in versions]
        found = [(int(m[1]), int(m[2])) for m in map(_GLIBC.fullmatch, names) if m]
        return max([*found, (2, 36) if _RELATIVE in names else (0, 0)])


def read(data: bytes) -> Elf:
    """Parse the bytes of a shared library. Raises ValueError unless they are 64-bit ELF."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF file")
    try:
        return _read(data)
    except (struct.error, KeyError, StopIteration) as error:
        raise ValueError(f"damaged ELF tables ({error})") from None


def _read(data: bytes) -> Elf:
    number, start, size, count = _at(data, "<18xH12xQ14xHH", 0)
    segments = [_at(data, "<IIQQQQ", start + i * size) for i in range(count)]
    entries = next(
        list(struct.iter_unpack("<qQ", data[offset : offset + length // 16 * 16]))
        for kind, _, offset, _, _, length in segments
        if kind == _DYNAMIC
    )
    values = dict(entries)

    def place(tag: int) -> int:
        """Return the file offset of a table whose address in memory is the entry `tag`."""
        return next(
            values[tag] - address + offset
            for kind, _, offset, address, _, length in segments
            if kind == _LOAD and address <= values[tag] < address + length
        )

    strings = place(_STRINGS)

    def name(offset: int) -> str:
        found = strings + offset
        return data[found : data.index(b"\0", found)].decode("utf-8", "replace")

    versions: dict[str, frozenset[str]] = {}
    defined: set[str] = set()
    if _NEEDS in values:
        for at, (_, many, file, names, _) in _chain(
            data, "<HHIII", place(_NEEDS), values[_NEED_COUNT]
        ):
            each = _chain(data, "<IHHII", at + names, many)
            versions[name(file)] = frozenset(name(entry[3]) for _, entry in each)
    if _DEFINITIONS in values:
        for at, entry in _chain(data, "<HHHHIII", place(_DEFINITIONS), values[_DEFINITION_COUNT]):
            defined.add(name(_at(data, "<II", at + entry[5])[0]))
    needed = tuple(name(value) for tag, value in entries if tag == _NEEDED)
    machine = _MACHINES.get(number, f"ELF machine {number}")
    return Elf(machine, needed, versions, frozenset(defined))


def _at(data: bytes, form: str, offset: int) -> _Fields:
    return struct.unpack_from(form, data, offset)


def _chain(
    data: bytes, form: str, offset: int, count: int
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield the offset and the fields of linked entries. An entry's last field is the distance to
    the next entry."""
    for _ in range(count):
        entry = _at(data, form, offset)
        yield offset, entry
        offset += entry[-1]
