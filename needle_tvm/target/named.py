"""Named processors, for cross-compiling.

    needle_tvm.compile(model, x, target="raspberry-pi-5")

The table maps each name to LLVM's name for the processor. `docs/cross-compiling.md` explains how to
use these names.
"""

from __future__ import annotations

from typing import NamedTuple

ARM, X86 = "aarch64-linux-gnu", "x86_64-linux-gnu"


class Named(NamedTuple):
    """A target's triple, LLVM's name for its processor, and its number of cores (None: it varies
    between models)."""

    mtriple: str
    mcpu: str
    cores: int | None = None


NAMED = {
    ARM: Named(ARM, "generic"),  # any 64-bit Arm processor
    "raspberry-pi-3": Named(ARM, "cortex-a53", 4),
    "raspberry-pi-4": Named(ARM, "cortex-a72", 4),
    "raspberry-pi-5": Named(ARM, "cortex-a76", 4),
    "jetson-orin": Named(ARM, "cortex-a78ae"),
    "graviton2": Named(ARM, "neoverse-n1"),
    "graviton3": Named(ARM, "neoverse-v1"),
    "graviton4": Named(ARM, "neoverse-v2"),
    "ampere-altra": Named(ARM, "neoverse-n1"),
    X86: Named(X86, "x86-64"),  # any 64-bit x86 processor
    "x86-64-v2": Named(X86, "x86-64-v2"),  # SSE4.2
    "x86-64-v3": Named(X86, "x86-64-v3"),  # AVX2
    "x86-64-v4": Named(X86, "x86-64-v4"),  # AVX-512
}
