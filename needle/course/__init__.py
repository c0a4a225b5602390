"""The names and module paths that needle has in the CMU course 10-414/714, Deep Learning Systems.

    import needle.course

    needle.course.install()

After this, homework code can import `needle.nn.nn_basic`, `needle.ops.EWiseAdd`,
`needle.autograd.TensorOp`, `needle.data.datasets` and the other names in
docs/coming-from-the-course.md. Nothing else in needle imports this package, and without `install`
it changes nothing.
"""

from __future__ import annotations

from . import arrays, data, layers, modules, ops, optimizers, semantics, tensors
from .patches import PATCHES

_BACKENDS = ("nd", "np")
_SEMANTICS = ("needle", "course")


def install(backend: str = "nd", semantics: str = "needle") -> None:
    """Add the course's names to needle, for the whole process. A second call replaces the first.

    `backend` is the course's NEEDLE_BACKEND. With "np", the `compute` of your own ops gets NumPy
    arrays and Python floats become float64, as in homeworks 1 and 2; with "nd", `compute` gets
    NDArrays. SGD and Adam have the course's arguments and defaults, and Embedding accepts indices
    stored as floats.

    `semantics="course"` also restores the course's behaviour where needle differs on purpose:
    `backward` replaces gradients, keeps its graph and records the graph of the gradients; all
    values of a graph are kept; Python integers become floating-point tensors. This costs time and
    memory.

    Raises ValueError for any other backend or other semantics.
    """
    for what, value, known in (
        ("backend", backend, _BACKENDS),
        ("semantics", semantics, _SEMANTICS),
    ):
        if value not in known:
            raise ValueError(f"install: {what} {value!r} is not one of {', '.join(known)}")
    uninstall()
    arrays.install(PATCHES)
    ops.install(PATCHES, backend)
    tensors.install(PATCHES, backend)
    data.install(PATCHES)
    layers.install(PATCHES)
    optimizers.install(PATCHES)
    if semantics == "course":
        _semantics(PATCHES, backend)
    modules.install(PATCHES, backend)  # last, because its modules also hold the names added above


def uninstall() -> None:
    """Undo all changes that `install` made."""
    PATCHES.undo()


_semantics = semantics.install  # in `install` the argument `semantics` hides the module

__all__ = ["install", "uninstall"]
