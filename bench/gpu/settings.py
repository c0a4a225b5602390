"""What the sections of `make gpu-bench` share: how one is run, sizes, and names. Standard library
only."""

from __future__ import annotations

import time
from dataclasses import dataclass

MODELS = ("mlp", "conv", "transformer")
PRECISIONS = ("float32", "tf32", "bfloat16")
EITHER = "needle tuned or cuBLAS"  # tuned, with products by whichever was faster when compiling
OWN_BATCH, LARGE_BATCH = 8, 256
GEMM = 4096
STEPS = 1000


@dataclass(frozen=True)
class Settings:
    """How a section is run: on which device, how often, until when (`time.time()`).

    A rehearsal runs on the processor and is small: `batch` and `extent` say how small.
    """

    deadline: float
    rounds: int = 7
    device: str = "cuda"
    block_seconds: float = 0.06

    @property
    def rehearsal(self) -> bool:
        """Whether this only shows that everything works."""
        return self.device == "cpu"

    @property
    def left(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - time.time()

    def batch(self, batch: int) -> int:
        """A section's batch, or a rehearsal's."""
        # Of two images a batch normalisation leaves nothing but their signs.
        return 4 if self.rehearsal else batch

    def extent(self, extent: int) -> int:
        """The extent of a matrix, or a rehearsal's."""
        return 32 if self.rehearsal else extent


def named(name: str, precision: str) -> str:
    """A contestant's name with its precision: "PyTorch eager, bfloat16"; float32 goes unsaid."""
    return name if precision == "float32" else f"{name}, {precision}"
