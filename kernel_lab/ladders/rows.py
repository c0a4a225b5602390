"""What kernels that reduce rows share: sums in lanes, and an exponential made of arithmetic."""

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


def polynomial_exp(x: Any) -> Any:
    """e^x of a float32 that is not positive, in arithmetic that LLVM puts in vectors.

    x = n ln(2) + r, and e^x = 2^n e^r, where 2^n is made by writing n into a float's exponent.
    Below -87 the result is e^-87, about 1.6e-38.
    """
    from needle_tvm._tvm.names import te, tirx

    given = te.max(x, _LEAST)
    x = tirx.Var("z", "float32")  # so that its loads are made once
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
    """A reduction of N terms `term(*row, k)`, in lanes that each take every so many-th of them.

    `over` is the reduction and the same for two values: (te.sum, operator.add). What the lanes
    leave at the end of a row is reduced one by one, and so is a row shorter than the lanes, or
    every row if there are no `chains`.
    """
    from needle_tvm._tvm.names import te

    reduce, combine = over
    n = case["N"]
    width = chains * case.processor.lanes
    if not 0 < width <= n:
        k = te.reduce_axis((0, n), name="k")
        return te.compute(shape, lambda *row: reduce(term(*row, k), axis=k), name=name)
    steps, rest = n // width, n % width
    step, lane = te.reduce_axis((0, steps), name="step"), te.reduce_axis((0, width), name="lane")
    lanes = te.compute(
        (*shape, width),
        lambda *at: reduce(term(*at[:-1], step * width + at[-1]), axis=step),
        name=f"{name}_lanes",
    )
    if not rest:
        return te.compute(shape, lambda *row: reduce(lanes(*row, lane), axis=lane), name=name)
    last = te.reduce_axis((0, rest), name="last")
    whole = te.compute(
        shape, lambda *row: reduce(lanes(*row, lane), axis=lane), name=f"{name}_whole"
    )
    tail = te.compute(
        shape, lambda *row: reduce(term(*row, n - rest + last), axis=last), name=f"{name}_tail"
    )
    return te.compute(shape, lambda *row: combine(whole[row], tail[row]), name=name)


def lanes_in_vectors(sch: Schedule, name: str) -> Any:
    """Put the lanes of `in_lanes` in vectors, which stay in registers.

    Call it after the block has been computed where it belongs. Returns the loop over a row's steps,
    None if its rows are too short for lanes.
    """
    names = [sch.get(block).name_hint for block in sch.get_child_blocks(sch.get_sblock("root"))]
    if f"{name}_lanes" not in names:
        return None
    block = sch.get_sblock(f"{name}_lanes")
    *_, lane, step = sch.get_loops(block)
    sch.reorder(step, lane)
    sch.set_scope(block, 0, "local")
    sch.vectorize(lane)
    return step


def row_by_row(sch: Schedule, result: str, skip: tuple[str, ...] = ()) -> Any:
    """Compute every stage of a row before the next row begins; return the loop over rows.

    `result` is the last stage; those in `skip` stay where they are.
    """
    last = sch.get_sblock(result)
    row = sch.get_loops(last)[0]
    for block in reversed(sch.get_child_blocks(sch.get_sblock("root"))):
        if sch.get(block).name_hint not in (result, *skip):
            sch.compute_at(block, row, preserve_unit_loops=True)
    return row
