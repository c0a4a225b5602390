"""Function transforms: derivatives as functions, with torch.func's names and meanings.

Each takes a function of Tensors, or of lists, tuples and dicts of Tensors, and differentiates it
with respect to the positional arguments `argnums`, an integer or a tuple of integers. Tensors that
the function closes over, such as a model's weights, may require gradients too: the results then
stay connected to the graph of those tensors. All functions here can be nested in each other and
traced.

There is no forward mode and no vmap: `jvp` and `jacfwd` differentiate a gradient, and a Jacobian
takes one backward pass per row or column.
"""

import inspect

from ..common.keywords import name_functions
from ._module import functional_call
from ._transforms import (
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacobian,
    jacrev,
    jvp,
    value_and_grad,
    vjp,
)

__all__ = [
    "functional_call",
    "grad",
    "grad_and_value",
    "hessian",
    "jacfwd",
    "jacobian",
    "jacrev",
    "jvp",
    "value_and_grad",
    "vjp",
]

globals().update(
    name_functions((n, globals()[n]) for n in __all__ if inspect.isfunction(globals()[n]))
)
