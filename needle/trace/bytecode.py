"""Find the names that bytecode reads and imports."""

from __future__ import annotations

import dis
import types
from collections.abc import Iterator

_SILENT = {"EXTENDED_ARG", "CACHE", "PUSH_NULL", "NOP"}  # instructions between a name and its use
_VARIABLES = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield a `code` object and the code objects nested in it, outer ones first."""
    pending = [code]
    while pending:
        yield (item := pending.pop())
        pending += [c for c in item.co_consts if isinstance(c, types.CodeType)]


def variables(code: types.CodeType) -> Iterator[str]:
    """Yield the global variables that a code object reads."""
    for each in dis.get_instructions(code):
        if each.opname in _VARIABLES:
            yield each.argval


def imports(code: types.CodeType) -> Iterator[str]:
    """Yield the names of the modules that a `code` object imports. The name of a relative import
    comes without its leading dots."""
    for each in dis.get_instructions(code):
        if each.opname == "IMPORT_NAME":
            yield each.argval


def reads_computed_names(code: types.CodeType) -> bool:
    """Return whether a `code` object may read attributes whose names do not occur in it, because it
    uses `vars` or the like, or passes `getattr` a name that is not a string constant."""
    found = [each for each in dis.get_instructions(code) if each.opname not in _SILENT]
    for i, each in enumerate(found):
        if each.argval in _ALL_NAMES and each.opname.startswith("LOAD"):
            return True
        if each.argval not in ("getattr", "hasattr") or not each.opname.startswith("LOAD"):
            continue
        args = []
        for after in found[i + 1 :]:
            if after.opname.startswith(("CALL", "PRECALL")):
                break
            args.append(after)
        if not all(arg.opname.startswith("LOAD") for arg in args):
            return True
        names = [k for k, arg in enumerate(args) if isinstance(arg.argval, str) and _constant(arg)]
        if not names or any("ATTR" in a.opname or "METHOD" in a.opname for a in args[names[0] :]):
            return True
    return False


def _constant(instruction: dis.Instruction) -> bool:
    return instruction.opname in ("LOAD_CONST", "LOAD_CONST_IMMORTAL")


_ALL_NAMES = ("vars", "__dict__", "dir", "asdict", "astuple", "fields", "attrgetter")
