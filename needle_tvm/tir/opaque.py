"""What TVM's simplifier does not look into: `opaque(x)` is x in the code."""

from __future__ import annotations

from typing import Any

from needle_tvm._tvm.names import tirx, tvm

_NAME = "tirx.needle_opaque"


def register() -> None:
    """Have TVM know of it. To be called once."""
    for attribute, value in (
        ("TVectorizable", True),
        ("TCallEffectKind", tirx.CallEffectKind.Pure.value),
        ("TScriptPrinterName", "needle_opaque"),
    ):
        tvm.ir.register_op_attr(_NAME, attribute, value)
    # After whatever simplifies.
    tirx.op.register_intrin_lowering(_NAME, target="default", f=lambda call: call.args[0])


def opaque(x: Any, number: int = 0) -> Any:
    """x; another one to the simplifier than with another `number`."""
    return tirx.call_intrin(str(x.ty), _NAME, x, number)
