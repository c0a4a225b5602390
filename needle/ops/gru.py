"""The elementwise part of one step of a GRU."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..autograd.dispatch import apply
from ..autograd.node import Node
from ..autograd.shapes import Spec, common_device
from ..autograd.tensor import Tensor
from ..backend_ndarray import NDArray
from ..backend_ndarray.dtypes import compute_dtype, is_floating
from ..errors import ShapeError
from ..op import Op, in_float32, register
from ..op.samples import Arg, error, sample
from ..op.signatures import ArrayGradients, TeNamespace, TeTensor
from ._gru_gates import gates_backward, gates_gradient
from .elementwise import Sigmoid, Tanh


@register
class GruGates(Op):
    """The new state h' of a GRU step. There are three inputs. The first (B, 3 H) holds a_r, a_z and
    a_n, the pre-activations computed from the step's input, side by side. The second (B, 3 H) holds
    b_r, b_z and b_n, the pre-activations computed from the state. The third is the state h (B, H).
    r = sigmoid(a_r + b_r), z = sigmoid(a_z + b_z), n = tanh(a_n + r * b_n), and
    h' = n + z * (h - n)."""

    infer_first = True
    reads = frozenset({"inputs"})
    samples = (
        sample((2, 9), (2, 9), (2, 3)),
        sample(Arg((3, 3), -20, 20), Arg((3, 3), -20, 20), (3, 1)),
        sample((0, 6), (0, 6), (0, 2)),
        sample((2, 0), (2, 0), (2, 0)),
    )
    error_samples = (
        error(ShapeError, r"\(2, 9\).*\(2, 4\)", (2, 9), (2, 9), (2, 4)),
        error(ShapeError, r"\(2, 9\).*\(3, 9\)", (2, 9), (3, 9), (2, 3)),
        error(ShapeError, r"\(9,\)", (9,), (9,), (3,)),
        error(TypeError, "float64", (2, 3), (2, 3), Arg((2, 1), dtype="float64")),
        error(TypeError, "int32", *[Arg((2, n), dtype="int32") for n in (3, 3, 1)]),
    )

    def infer(self, inputs: Spec, states: Spec, h: Spec) -> Spec:
        shape = h.shape
        wide = (shape[0], 3 * shape[1]) if len(shape) == 2 else None
        if wide is None or inputs.shape != wide or states.shape != wide:
            raise ShapeError(
                f"{self.name}: pre-activations of shapes {inputs.shape} and {states.shape}, and a "
                f"state of shape {shape}; they must be (B, 3 H), (B, 3 H) and (B, H)"
            )
        dtypes = {inputs.dtype, states.dtype, h.dtype}
        if len(dtypes) != 1 or not is_floating(h.dtype):
            raise TypeError(
                f"{self.name}: pre-activations are {inputs.dtype} and {states.dtype}, the state "
                f"{h.dtype}; all must be of one floating dtype"
            )
        return Spec(shape, h.dtype, common_device(self.name, inputs, states, h))

    def reference(self, inputs: np.ndarray, states: np.ndarray, h: np.ndarray) -> np.ndarray:
        (a, b, c), (d, e, f) = np.split(inputs, 3, axis=1), np.split(states, 3, axis=1)
        r, z = 1 / (1 + np.exp(-(a + d))), 1 / (1 + np.exp(-(b + e)))
        n = np.tanh(c + r * f)
        return n + z * (h - n)

    @in_float32
    def compute(self, inputs: NDArray, states: NDArray, h: NDArray) -> NDArray:
        width = h.shape[1]
        gates = (inputs[:, : 2 * width] + states[:, : 2 * width]).sigmoid()
        n = (inputs[:, 2 * width :] + gates[:, :width] * states[:, 2 * width :]).tanh()
        return n + gates[:, width:] * (h - n)

    def gradient(self, out_grad: Tensor, node: Tensor) -> tuple[Tensor, ...]:
        return gates_gradient(out_grad, *node.inputs)

    def backward(self, out_grad: NDArray, node: Node) -> ArrayGradients:
        inputs, states, h = node.saved
        if compute_dtype(h.dtype) != h.dtype:
            return NotImplemented
        return gates_backward(out_grad, inputs, states, h)

    def emit_te(self, k: TeNamespace, inputs: TeTensor, states: TeTensor, h: TeTensor) -> TeTensor:
        width = h.shape[1]

        def part(x: TeTensor, number: int) -> TeTensor:
            return k.te.compute(h.shape, lambda b, j: x[b, number * width + j])

        def both(number: int) -> Any:
            return k.topi.add(part(inputs, number), part(states, number))

        r, z = (Sigmoid().emit_te(k, both(number)) for number in (0, 1))
        share = k.topi.multiply(r, part(states, 2))
        n = Tanh().emit_te(k, k.topi.add(part(inputs, 2), share))
        return k.topi.add(n, k.topi.multiply(z, k.topi.subtract(h, n)))


GRU_GATES = GruGates()


def gru_gates(inputs: Tensor, states: Tensor, h: Tensor) -> Tensor:
    """Return the new state of a GRU step. `inputs` and `states`, both (B, 3 H), are the
    pre-activations of the gates r, z, n from the step's input and from the state, respectively; `h`
    (B, H) is the state. Raises ShapeError if the shapes do not match."""
    return apply(GRU_GATES, (inputs, states, h))
