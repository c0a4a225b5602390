"""Helpers for kernels that reduce rows: sums in lanes, and an exponential made of arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kernel_lab.workload import Case

if TYPE_CHECKING:
    from needle_tvm._tvm.names import Schedule

CHAINS = 4  # vectors of partial results, so that no addition waits for the one before

# exp(r) = 1 + r + r^2 p(r) for |r| <= ln(2) / 2, with p as in S. Moshier's Cephes (expf).
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5)
_LOG2_E, _LN2_HIGH, _LN2_LOW = 1.44269504088896341, 0.693359375, -2.12194440e-4
_LEAST = -87.0  # e^-87 is near the smallest normal float32


def shared_out(sch: Schedule, row: Any, case: Case) -> None:
    """Distribute the rows over the threads, in 16 tasks per core, each of several rows.

    TVM's runtime allocates a row's temporary buffers in each iteration of the parallel loop. In a
    loop over tasks, it allocates them once per task.
    """
    from needle_tvm.kernels.blocks import in_tasks

    sch.parallel(in_tasks(sch, row, case.processor.cores)[0])


def polynomial_exp(x: Any) -> Any:
    """Return e^x for a float32 `x` of at most 0, in arithmetic that LLVM vectorises.

    x = n ln(2) + r, and e^x = 2^n e^r, where 2^n is made by writing n into a float's exponent.
    Below -87 the result is e^-87, about 1.6e-38.
    """
    from needle_tvm._tvm.names import te, tirx

    given = te.max(x, _LEAST)
    x = tirx.Var("z", "float32")  # so that its operands are loaded once
    n = tirx.floor(x * _LOG2_E + 0.5)
    r = x - n * _LN2_HIGH - n * _LN2_LOW
    p: Any = _EXP[0]
    for coefficient in _EXP[1:]:
        p = p * r + coefficient
    exponent = (n.astype("int32") + 127) << 23
    return tirx.Let(x, given, (p * r * r + r + 1.0) * tirx.reinterpret("float32", exponent))


def in_lanes(
    case: Case,
    shape: tuple[Any, ...],
    term: Callable[..., Any],
    over: tuple[Callable[..., Any], Callable[[Any, Any], Any]],
    name: str,
    chains: int = CHAINS,
) -> Any:
    """Return the reduction of the N terms `term(*row, k)` in lanes: of n lanes, each takes every
    n-th term.

    `over` is the reduction and its form for two values: (te.sum, operator.add). The two halves of a
    row's lanes are combined, again and again, until one value is left. Terms left over at the end
    of a row are reduced one by one; so are all terms of a row that is shorter than the lanes, and
    all rows if `chains` is 0.
    """
    from needle_tvm._tvm.names import te

    reduce, combine = over
    n = case["N"]
    width = chains * case.processor.lanes
    if not 0 < width <= n:
        k = te.reduce_axis((0, n), name="k")
        return te.compute(shape, lambda *row: reduce(term(*row, k), axis=k), name=name)
    steps, rest = n // width, n % width
    step = te.reduce_axis((0, steps), name="step")
    lanes = te.compute(
        (*shape, width),
        lambda *at: reduce(term(*at[:-1], step * width + at[-1]), axis=step),
        name=f"{name}_lanes",
    )
    lanes_of_a_vector = width // chains
    folded = te.compute(
        (*shape, lanes_of_a_vector),
        lambda *at: _tree(
            combine, [lanes(*at[:-1], n * lanes_of_a_vector + at[-1]) for n in range(chains)]
        ),
        name=f"{name}_folded",
    )

    def whole(*row: Any) -> Any:
        return _tree(combine, [folded(*row, n) for n in range(lanes_of_a_vector)])

    if not rest:
        return te.compute(shape, whole, name=name)
    last = te.reduce_axis((0, rest), name="last")
    tail = te.compute(
        shape, lambda *row: reduce(term(*row, n - rest + last), axis=last), name=f"{name}_tail"
    )
    return te.compute(shape, lambda *row: combine(whole(*row), tail(*row)), name=name)


def _tree(combine: Callable[[Any, Any], Any], values: list[Any]) -> Any:
    """Combine the values, one half with the other, so that few operations wait for each other."""
    while len(values) > 1:
        half = len(values) // 2
        rest = values[2 * half :]
        values = [combine(*pair) for pair in zip(values[:half], values[half:], strict=False)] + rest
    return values[0]


def lanes_in_vectors(sch: Schedule, name: str) -> Any:
    """Put the lanes of `in_lanes` in vectors, which stay in registers until the row is finished.

    Call this after moving the block to the loop where it is computed. Returns the loop over a row's
    steps, or None if the rows are too short for lanes.
    """
    if f"{name}_lanes" not in stages(sch):
        return None
    row = sch.get_loops(sch.get_sblock(name))[-1]
    for part in ("tail", "folded", "lanes"):
        if f"{name}_{part}" in stages(sch):
            sch.compute_at(sch.get_sblock(f"{name}_{part}"), row, preserve_unit_loops=True)
    lanes, folded = (sch.get_sblock(f"{name}_{part}") for part in ("lanes", "folded"))
    *_, lane, step = sch.get_loops(lanes)
    sch.reorder(step, lane)
    for block in (lanes, folded):
        sch.set_scope(block, 0, "local")
    sch.vectorize(lane)
    sch.vectorize(sch.get_loops(folded)[-1])
    return step


def row_by_row(sch: Schedule, result: str) -> Any:
    """Compute every stage of a row before the next row begins; return the loop over rows.

    `result` is the last stage.
    """
    row = sch.get_loops(sch.get_sblock(result))[0]
    for name in reversed(stages(sch)):
        if name != result:
            sch.compute_at(sch.get_sblock(name), row, preserve_unit_loops=True)
    return row


def stages(sch: Schedule) -> list[str]:
    """Return the names of a kernel's stages, each after the stages it needs."""
    blocks = sch.get_child_blocks(sch.get_sblock("root"))
    return [str(sch.get(block).name_hint) for block in blocks]
