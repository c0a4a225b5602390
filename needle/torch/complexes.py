"""Complex tensors inside a program, as pairs of real ones.

needle has no complex dtype. A complex value between two nodes is a `Complex`. A complex input,
weight, constant or output of a program is a real tensor (..., 2) of real and imaginary parts, as in
`needle.fft`; `reading.py` inserts OF_PARTS and TO_PARTS nodes to convert between the two. A node
that takes or returns complex numbers is converted by its `complex_converter` or, for an operator in
`_BY_PART`, by the ordinary converter, once for each part.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from ..autograd.tensor import Tensor
from ..conversion.values import Value, dtype_of, shape_of, tensor
from ..errors import UnsupportedError
from . import registry
from .program import Node, Result

OF_PARTS = "needle.of_parts.default"  # like aten.view_as_complex
TO_PARTS = "needle.to_parts.default"  # like aten.view_as_real
REAL = {"complex64": "float32", "complex128": "float64"}  # the dtypes of parts
_COMPLEX = {real: name for name, real in REAL.items()}


@dataclasses.dataclass(frozen=True)
class Complex:
    """A complex tensor: two real tensors of the same shape and dtype."""

    real: Tensor
    imag: Tensor

    @property
    def shape(self) -> tuple[Any, ...]:
        """The extents."""
        return shape_of(self.real)

    @property
    def dtype(self) -> str:
        """The complex dtype."""
        return _COMPLEX[self.real.dtype]

    @property
    def parts(self) -> tuple[Tensor, Tensor]:
        """The real and the imaginary part."""
        return self.real, self.imag


def real_dtype(dtype: str) -> str:
    """Return the dtype of the parts of a complex `dtype`; a real `dtype` is returned unchanged."""
    return REAL.get(dtype, dtype)


# Operators that treat both parts alike, with the positions of the arguments that have parts. Real
# tensors and numbers in these positions have the imaginary part 0. Other arguments are unchanged.
_VALUES = {
    "aten.cat": (0,),
    "aten.constant_pad_nd": (0, 2),
    "aten.copy": (0, 1),
    "aten.diagonal_scatter": (0, 1),
    "aten.fill": (0, 1),
    "aten.full": (1,),
    "aten.full_like": (0, 1),
    "aten.index_add": (0, 3),
    "aten.index_copy": (0, 3),
    "aten.index_fill": (0, 3),
    "aten.index_put": (0, 2),
    "aten.masked_fill": (0, 2),
    "aten.masked_scatter": (0, 2),
    "aten.new_full": (0, 2),
    "aten.pad": (0, 3),
    "aten.put": (0, 2),
    "aten.scatter": (0, 3),
    "aten.scatter_add": (0, 3),
    "aten.select_scatter": (0, 1),
    "aten.slice_scatter": (0, 1),
    "aten.stack": (0,),
    "aten.where": (1, 2),
    "aten.new_zeros": (0,),
    "aten.zeros_like": (0,),
}
_VIEWS = """
    _reshape_alias _unsafe_view alias as_strided as_strided_copy broadcast_to chunk clone contiguous
    cumsum detach detach_copy diag diag_embed diagonal expand expand_copy flatten flip fliplr flipud
    gather im2col col2im index index_select lift lift_fresh lift_fresh_copy mean movedim narrow neg
    permute permute_copy pixel_shuffle pixel_unshuffle reflection_pad1d reflection_pad2d
    reflection_pad3d repeat repeat_interleave replication_pad1d replication_pad2d replication_pad3d
    reshape roll rot90 select slice split split_with_sizes squeeze squeeze_copy sum swapaxes t take
    take_along_dim tensor_split tile trace transpose tril triu unbind unflatten unfold unsqueeze
    view view_copy
""".split()
_BY_PART: dict[str, tuple[int, ...]] = {**{f"aten.{name}": (0,) for name in _VIEWS}, **_VALUES}

# Operators that are linear in each of two arguments, with the positions of the two.
_BILINEAR = {
    **dict.fromkeys(("aten.mm", "aten.bmm", "aten.matmul", "aten.mv", "aten.dot"), (0, 1)),
    **dict.fromkeys(("aten.outer", "aten.inner", "aten.kron", "aten.tensordot"), (0, 1)),
}


def concerns(node: Node, args: Any) -> bool:
    """Return whether a node takes or returns complex numbers."""
    returned = any(each is not None and each.dtype in REAL for each in node.results)
    return returned or _holds(args)


def _holds(value: Any) -> bool:
    if isinstance(value, tuple):
        return any(map(_holds, value))
    return isinstance(value, (Complex, complex)) or (isinstance(value, str) and value in REAL)


def knows(operator: str) -> bool:
    """Return whether nodes of an `operator` with complex numbers can be converted without
    decomposition."""
    if registry.find_complex(operator) is not None:
        return True
    name = _plain(operator)
    return (name in _BY_PART or name in _BILINEAR) and registry.find(operator) is not None


def _plain(operator: str) -> str:
    return operator.rpartition(".")[0]


def convert(node: Node, args: tuple[Any, ...], ordinary: Callable[..., Any]) -> Any:
    """Convert a `node` with complex numbers that has no `complex_converter`. `ordinary` converts
    nodes of real numbers; `args` are the values of the arguments. Raises UnsupportedError for an
    operator that needle has only for real numbers."""
    name = _plain(node.operator)
    real = _of_reals(node)
    if name in _BY_PART:
        made = [ordinary(real, _part(args, index, _BY_PART[name])) for index in (0, 1)]
        if node.several:
            return tuple(Complex(tensor(a), tensor(b)) for a, b in zip(*made, strict=True))
        return Complex(*map(tensor, made))
    if name in _BILINEAR:
        return _bilinear(real, args, _BILINEAR[name], ordinary)
    raise UnsupportedError(f"{node}: needle has it only for real numbers")


def _of_reals(node: Node) -> Node:
    """Return a node whose complex dtypes are replaced by the dtypes of their parts."""
    results = tuple(
        None if each is None else Result(each.shape, real_dtype(each.dtype))
        for each in node.results
    )
    return dataclasses.replace(node, results=results)


def _part(args: tuple[Any, ...], index: int, positions: tuple[int, ...]) -> tuple[Any, ...]:
    """Return the arguments, with the arguments at `positions` replaced by their real (index 0) or
    imaginary parts."""
    return tuple(
        part(each, index) if i in positions else _as_real(each) for i, each in enumerate(args)
    )


def _as_real(value: Any) -> Any:
    return real_dtype(value) if isinstance(value, str) else value


def part(value: Any, index: int) -> Any:
    """Return the real (`index` 0) or imaginary part of a `value`, which is a tensor, a number, or a
    tuple of tensors and numbers."""
    if isinstance(value, tuple):
        return tuple(part(each, index) for each in value)
    if isinstance(value, Complex):
        return value.parts[index]
    if isinstance(value, complex):
        return value.imag if index else value.real
    if index == 0 or value is None:
        return value
    if isinstance(value, (Tensor, np.ndarray)):
        return zeros_like(value)
    return 0.0


def zeros_like(value: Value) -> Tensor:
    """Return zeros of a value's shape and floating dtype (float32 for other dtypes)."""
    from .. import ops

    x = tensor(value)
    dtype = x.dtype if x.dtype in _COMPLEX else "float32"
    zero = Tensor(np.zeros((), dtype), requires_grad=False)
    return ops.broadcast_to(zero, x.shape) if x.shape else zero


def _bilinear(
    node: Node, args: tuple[Any, ...], positions: tuple[int, ...], ordinary: Callable[..., Any]
) -> Complex:
    from .. import ops

    def product(first: int, second: int) -> Tensor:
        given = list(map(_as_real, args))
        for position, index in zip(positions, (first, second), strict=True):
            given[position] = part(args[position], index)
        return tensor(ordinary(node, tuple(given)))

    return Complex(
        ops.subtract(product(0, 0), product(1, 1)), ops.add(product(0, 1), product(1, 0))
    )


def dtype_name(value: Any) -> str:
    """Return the name of a value's dtype, which may be complex."""
    return value.dtype if isinstance(value, Complex) else dtype_of(value)
