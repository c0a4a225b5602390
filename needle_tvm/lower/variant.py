"""Which code is wanted: stage, precision, what is left out, whose matmuls. Imports no TVM."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from needle_tvm.target.precision import FLOAT32

if TYPE_CHECKING:
    from needle_tvm.kernels.dense.gpu_library_products import Product


@dataclass(frozen=True)
class Variant:
    """A stage, and what of it: `precision` is what matmuls take their operands in
    (`target.precision`), `disable` names passes and rules to leave out (`lower.pipeline.switches`),
    `by_library` says which matmuls are cuBLAS's, None for none."""

    stage: str
    precision: str = FLOAT32
    disable: Collection[str] = ()
    by_library: Callable[[Product], bool] | None = None
