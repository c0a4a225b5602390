"""The interpreter's queries about TIR loops and thread axes."""

from __future__ import annotations

from typing import Any

from kernel_lab.trace.errors import NotInterpreted

SERIAL, PARALLEL, VECTORIZED, UNROLLED, THREAD_BINDING = range(5)  # tirx.ForKind


def is_plain(node: Any) -> bool:
    """Return whether a statement is a serial or unrolled loop with constant bounds."""
    return (
        type(node).__name__ == "For"
        and int(node.kind) in (SERIAL, UNROLLED)
        and hasattr(node.min, "value")
        and hasattr(node.extent, "value")
    )


def constant_extent(node: Any) -> int:
    """Return a loop's extent. Raises NotInterpreted if it is not a constant."""
    if not hasattr(node.extent, "value"):
        raise NotInterpreted(
            f"trace: loop {node.loop_var.name} is parallel or vectorised over {node.extent}, which"
            " is not a constant"
        )
    return int(node.extent.value)


def thread_extents(node: Any) -> dict[str, int]:
    """Return the extent, by tag, of each thread axis that a kernel binds anywhere."""
    found: dict[str, int] = {}
    pending = [node]
    while pending:
        here = pending.pop()
        if type(here).__name__ == "AttrStmt" and str(here.attr_key) == "thread_extent":
            tag, extent = str(here.node.thread_tag), here.value
            if not hasattr(extent, "value"):
                raise NotInterpreted(f"trace: {tag} has the symbolic extent {extent}")
            found[tag] = int(extent.value)
        for child in ("body", "then_case", "else_case"):
            if getattr(here, child, None) is not None:
                pending.append(getattr(here, child))
        pending.extend(getattr(here, "seq", ()))
    return found
