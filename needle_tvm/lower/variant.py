"""The variant of code to generate: stage, precision, disabled passes, cuBLAS. Imports no TVM."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from needle_tvm.target.precision import FLOAT32

if TYPE_CHECKING:
    from needle_tvm.kernels.dense.gpu_library_products import Product


@dataclass(frozen=True)
class Variant:
    """A stage and its options.

    `precision` is the dtype of matmul operands (`target.precision`), `disable` names passes and
    rules to leave out (`lower.pipeline.switches`), and `by_library` selects the matmuls that cuBLAS
    computes, None for none.
    """

    stage: str
    precision: str = FLOAT32
    disable: Collection[str] = ()
    by_library: Callable[[Product], bool] | None = None
