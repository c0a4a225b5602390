"""Rules that write ops as ONNX nodes, one file per family of ops.

Rules write to a `Writer`. It applies transposes and reshapes of weights to the stored arrays,
cancels transposes, and widens dtypes for which ONNX Runtime has no kernel.
"""

from __future__ import annotations

import importlib
import pkgutil

from ._rules import RULES, Rule, Site, all_ops, find, rule, written
from ._writer import Value, Writer, Written

__all__ = [
    "RULES",
    "Rule",
    "Site",
    "Value",
    "Writer",
    "Written",
    "all_ops",
    "find",
    "rule",
    "written",
]

for _file in pkgutil.iter_modules(__path__):
    if _file.name[0] != "_":
        importlib.import_module(f"{__name__}.{_file.name}")
