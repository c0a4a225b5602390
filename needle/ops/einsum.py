"""Einstein summation: sums of products, computed by permutations, reshapes and matmuls."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from ..autograd.shapes import Shape
from ..autograd.tensor import Tensor
from ..backend_ndarray.dtypes import is_half, result_type
from ..common.state import state
from ._contraction import Program, program
from ._subscripts import Labels, from_lists, parsed
from .elementwise import cast


def einsum(subscripts: Any, *operands: Any) -> Tensor:
    """Return the sum of products of elements that `subscripts` describes, like NumPy's and
    PyTorch's einsum.

    "ij,jk->ik" names the axes of each operand and of the result: for every i and k, y[i, k] is the
    sum over j of a[i, j] * b[j, k]. A name that the result lacks is summed over. A name that an
    operand has twice takes its diagonal ("ii->i"). Without "->", the result has the names that
    occur once, in alphabetical order. "..." stands for all axes without a name. These axes
    broadcast; without "->" they come first, and if the result lacks them they are summed. An axis
    of extent 1 broadcasts against the other axes of its name. As in NumPy, the names may also be
    lists of integers: einsum(a, [0, 1], b, [1, 2], [0, 2]).

    The operands are Tensors of any shapes and dtypes, on the same device. The result has their
    common dtype; integers wrap around in it. With more than two operands, the pairs that cost the
    least work are contracted first (NumPy's einsum_path); each contraction with shared names is one
    matmul. In the choice of the order, a size that is unknown while tracing counts as its largest
    possible value, at most 256.

    Raises ValueError for subscripts that cannot be read or do not fit the number of operands, and
    ShapeError for an operand with the wrong number of axes or for extents of one name that differ.

    >>> a, b = ndl.ones(2, 3), ndl.ones(3, 4)
    >>> ndl.einsum("ij,jk->ki", a, b).shape
    (4, 2)
    """
    if isinstance(subscripts, str):
        if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
            operands = tuple(operands[0])
        _check_operands(operands)
        return _run(_program_of_text, (subscripts,), operands)
    operands, lists, wanted = _interleaved((subscripts, *operands))
    _check_operands(operands)
    inputs, output = from_lists(lists, wanted, tuple([x.ndim for x in operands]))
    return _contract("einsum", inputs, output, operands)


def _contract(
    name: str, inputs: Sequence[Labels], output: Labels, operands: Sequence[Tensor]
) -> Tensor:
    """Return the sum of products over all labels that `output` lacks; `inputs` label the operands'
    axes. This function is for the modules of this folder."""
    return _run(_program, (name, tuple(inputs), output), operands)


def _run(find: Any, what: tuple[Any, ...], operands: Sequence[Tensor]) -> Tensor:
    """Run the program that `find` returns for `what` and these operands."""
    if state.autocast is not None:
        operands = state.autocast.lowered(operands)
    dtype = operands[0].dtype
    values: list[Any] = list(operands)
    if any([x.dtype != dtype for x in operands]):
        dtype = functools.reduce(result_type, [x.dtype for x in operands])
        values = [x if x.dtype == dtype else cast(x, dtype) for x in operands]
    if state.trace is not None:
        find = find.__wrapped__  # a cache would compare sizes, which may be undecided
    for function, places in find(*what, tuple([x.shape for x in operands]), is_half(dtype)):
        if len(places) == 1:
            (at,) = places
            values.append(function(values[at]))
        else:
            at, other = places
            values.append(function(values[at], values[other]))
            values[other] = None
        values[at] = None  # each value is used once, then freed
    out: Tensor = values[-1]
    return out if out.dtype == dtype else cast(out, dtype)


_program = functools.lru_cache(maxsize=1024)(program)


@functools.lru_cache(maxsize=1024)
def _program_of_text(subscripts: str, shapes: tuple[Shape, ...], half: bool) -> Program:
    inputs, output = parsed(subscripts, tuple(map(len, shapes)))
    return program("einsum", inputs, output, shapes, half)


def _interleaved(arguments: tuple[Any, ...]) -> tuple[tuple[Any, ...], list[Any], Any]:
    """Return the operands, their lists of labels, and the result's list of labels or None."""
    wanted = arguments[-1] if len(arguments) % 2 else None
    pairs = arguments[: len(arguments) // 2 * 2]
    return pairs[::2], list(pairs[1::2]), wanted


def _check_operands(operands: Sequence[Any]) -> None:
    if not operands:
        raise ValueError("einsum: no operands: it needs at least one Tensor")
    for number, x in enumerate(operands):
        if not isinstance(x, Tensor):
            raise TypeError(f"einsum: operand {number} is a {type(x).__name__}, not a Tensor")
