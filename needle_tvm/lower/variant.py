"""The variant of code to generate: stage, precision, disabled passes, cuBLAS. This module imports
no TVM."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from needle_runtime.target.precision import FLOAT32
from needle_tvm.stages import CUBLAS, OWN

if TYPE_CHECKING:
    from needle_tvm.kernels.dense.gpu.library_products import Product


Measure = Callable[["Product", bool], float]


class Choice:
    """Decides whether cuBLAS computes a matmul, and keeps the reasons, as JSON values, in `notes`.

    `measure(product, by_library)` returns the seconds that a matmul takes. It is called for each
    distinct matmul, once for our own kernel and once for cuBLAS. Without `measure`, cuBLAS computes
    all matmuls. `key` has everything that the choice depends on, for the cache's key.
    """

    def __init__(self, measure: Measure | None = None, key: dict[str, Any] | None = None) -> None:
        self.key = key
        self.notes: list[dict[str, Any]] = []
        self._measure = measure
        self._known: dict[Product, bool] = {}

    def __call__(self, product: Product) -> bool:
        if product not in self._known:
            note = product.facts()
            chosen = True
            if self._measure is not None:
                own, library = (self._measure(product, which) for which in (False, True))
                chosen = library < own
                note |= {"own_seconds": own, "cublas_seconds": library}
            self.notes.append({**note, "chosen": CUBLAS if chosen else OWN})
            self._known[product] = chosen
        return self._known[product]


@dataclass(frozen=True)
class Variant:
    """A stage and its options.

    `precision` is the dtype of matmul operands (`target.precision`), `disable` names passes and
    rules to leave out (`lower.pipeline.switches`), and `by_library` selects the matmuls that cuBLAS
    computes (None: none).
    """

    stage: str
    precision: str = FLOAT32
    disable: Collection[str] = ()
    by_library: Choice | None = None
