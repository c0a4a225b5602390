"""The gradients of one step of a GRU, on Tensors and on arrays."""

from __future__ import annotations

from ..autograd.tensor import Tensor
from ..backend_ndarray import NDArray, empty
from .elementwise import sigmoid, tanh
from .tuples import concat


def gates_gradient(
    out_grad: Tensor, inputs: Tensor, states: Tensor, h: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients for the inputs of `gru_gates` from the gradient for h'."""
    width = h.shape[1]
    gates = sigmoid(inputs[:, : 2 * width] + states[:, : 2 * width])
    r, z, own = gates[:, :width], gates[:, width:], states[:, 2 * width :]
    n = tanh(inputs[:, 2 * width :] + r * own)
    of_n = out_grad * (1 - z) * (1 - n * n)
    of_r, of_z = of_n * own * r * (1 - r), out_grad * (h - n) * z * (1 - z)
    return concat([of_r, of_z, of_n], 1), concat([of_r, of_z, of_n * r], 1), out_grad * z


def gates_backward(
    out_grad: NDArray, inputs: NDArray, states: NDArray, h: NDArray
) -> tuple[NDArray, NDArray, NDArray]:
    """Return the result of `gates_gradient`, computed on arrays."""
    width = h.shape[1]
    gates = (inputs[:, : 2 * width] + states[:, : 2 * width]).sigmoid()
    r, z, own = gates[:, :width], gates[:, width:], states[:, 2 * width :]
    n = (inputs[:, 2 * width :] + r * own).tanh()
    of_n = out_grad * (1 - z) * (1 - n * n)
    of_inputs, of_states = (empty(inputs.shape, h.dtype, h.device) for _ in range(2))
    of_inputs[:, :width] = of_n * own * r * (1 - r)
    of_inputs[:, width : 2 * width] = out_grad * (h - n) * z * (1 - z)
    of_inputs[:, 2 * width :] = of_n
    of_states[:, : 2 * width] = of_inputs[:, : 2 * width]
    of_states[:, 2 * width :] = of_n * r
    return of_inputs, of_states, out_grad * z
