"""Create Tensors: filled with a value, random, or with initial weights.

`shape` is one sequence of integers, or separate integers. `dtype` is the name of a dtype, and
`device` a Device (None: the CPU). With `requires_grad` the result is a leaf that gets a gradient.
Functions with `options` take `device`, `dtype` and `requires_grad` as keywords. They raise
TypeError or ValueError for an invalid shape, number or dtype.
"""

from ..common.keywords import name_functions
from .basic import (
    constant,
    empty,
    empty_like,
    full,
    full_like,
    one_hot,
    ones,
    ones_like,
    rand,
    randb,
    randn,
    zeros,
    zeros_like,
)
from .sampling import bernoulli, multinomial, normal, rand_like, randint, randn_like, randperm
from .weights import kaiming_normal, kaiming_uniform, xavier_normal, xavier_uniform

__all__ = [
    "bernoulli",
    "constant",
    "empty",
    "empty_like",
    "full",
    "full_like",
    "kaiming_normal",
    "kaiming_uniform",
    "multinomial",
    "normal",
    "one_hot",
    "ones",
    "ones_like",
    "rand",
    "rand_like",
    "randb",
    "randint",
    "randn",
    "randn_like",
    "randperm",
    "xavier_normal",
    "xavier_uniform",
    "zeros",
    "zeros_like",
]

globals().update(name_functions((name, globals()[name]) for name in __all__))
