"""The names that byte code reads and imports."""

from __future__ import annotations

import dis
import re
import types
from collections.abc import Iterator
from typing import Any

_SILENT = {"EXTENDED_ARG", "CACHE", "PUSH_NULL", "NOP"}  # between a name and its use
_STEPS = {
    **dict.fromkeys(["LOAD_ATTR", "LOAD_METHOD"], "attribute"),
    **dict.fromkeys(["SWAP", "ROT_TWO"], "swap"),
    **dict.fromkeys(["STORE_FAST", "STORE_DEREF", "STORE_NAME"], "store"),
    **dict.fromkeys(["LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"], "name"),
    **dict.fromkeys(["LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"], "local"),
    "IMPORT_FROM": "from",
    "LOAD_GLOBAL": "global",
}


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """A code object and those nested in it, outer ones first."""
    pending = [code]
    while pending:
        yield (item := pending.pop())
        pending += [c for c in item.co_consts if isinstance(c, types.CodeType)]


def steps(code: types.CodeType) -> Iterator[tuple[str, Any]]:
    """The operations of a code object on names, in order; any other is a step without a name.

    The argument of "import" is (module, level of a relative import, whether it imports names).
    """
    last: list[Any] = [0, None]  # an import's two arguments, loaded just before it
    for instruction in dis.get_instructions(code):
        name, value = instruction.opname, instruction.argval
        if name in _SILENT:
            continue
        if name == "IMPORT_NAME":
            yield "import", (value, last[0], last[1] is not None)
        elif "_FAST" in name:
            # One instruction may name two variables; a closure's variable is only passed on.
            values = value if isinstance(value, tuple) else (value,)
            for way, variable in zip(re.findall("LOAD|STORE", name), values, strict=False):
                closed = variable in code.co_cellvars or variable in code.co_freevars
                load = "other" if closed else "local"
                yield ("store" if way == "STORE" else load), variable
        else:
            yield _STEPS.get(name, "other"), value
        last = [last[1], value]


def reads_computed_names(code: types.CodeType) -> bool:
    """Whether a code object may read attributes whose names do not occur in it: it uses `vars` or
    the like, or gives `getattr` anything but a string constant."""
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
