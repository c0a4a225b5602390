"""Hides values from TVM's simplifier: in the generated code, `opaque(x)` is x."""

from __future__ import annotations

from typing import Any

from needle_tvm._tvm.names import tirx, tvm

_NAME = "tirx.needle_opaque"


def register() -> None:
    """Register `opaque` with TVM. Call once."""
    for attribute, value in (
        ("TVectorizable", True),
        ("TCallEffectKind", tirx.CallEffectKind.Pure.value),
        ("TScriptPrinterName", "needle_opaque"),
    ):
        tvm.ir.register_op_attr(_NAME, attribute, value)
    # It is lowered with the intrinsics, after every pass that simplifies.
    tirx.op.register_intrin_lowering(_NAME, target="default", f=lambda call: call.args[0])


def opaque(x: Any, number: int = 0) -> Any:
    """Return x as a value that the simplifier does not know. It treats calls with different
    `number`s as different values."""
    return tirx.call_intrin(str(x.ty), _NAME, x, number)
