"""What a piece of byte code does with names."""

from __future__ import annotations

import dis
import re
import types
from collections.abc import Iterator
from typing import Any

_SILENT = {"EXTENDED_ARG", "CACHE", "PUSH_NULL", "NOP"}  # between a name and what is done with it
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
    """A piece of code and those inside it, outer ones first."""
    pending = [code]
    while pending:
        yield (item := pending.pop())
        pending += [c for c in item.co_consts if isinstance(c, types.CodeType)]


def steps(code: types.CodeType) -> Iterator[tuple[str, Any]]:
    """What code does with names, in its order; anything else is a step without a name.

    "import" has (module, level of a relative import, whether names are taken from it).
    """
    last: list[Any] = [0, None]  # the two arguments of an import are loaded before it
    for instruction in dis.get_instructions(code):
        name, value = instruction.opname, instruction.argval
        if name in _SILENT:
            continue
        if name == "IMPORT_NAME":
            yield "import", (value, last[0], last[1] is not None)
        elif "_FAST" in name:
            # One instruction may do two; a variable of a closure is only handed on.
            values = value if isinstance(value, tuple) else (value,)
            for way, variable in zip(re.findall("LOAD|STORE", name), values, strict=False):
                closed = variable in code.co_cellvars or variable in code.co_freevars
                load = "other" if closed else "local"
                yield ("store" if way == "STORE" else load), variable
        else:
            yield _STEPS.get(name, "other"), value
        last = [last[1], value]
