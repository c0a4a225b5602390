"""Modules: parameters and layers."""

from .basic import (
    Dropout,
    Flatten,
    Identity,
    Linear,
    ReLU,
    Residual,
    Sequential,
    Sigmoid,
    SoftmaxLoss,
    Tanh,
)
from .module import Module, Parameter
from .norm import BatchNorm1d, LayerNorm1d

__all__ = [
    "BatchNorm1d",
    "Dropout",
    "Flatten",
    "Identity",
    "LayerNorm1d",
    "Linear",
    "Module",
    "Parameter",
    "ReLU",
    "Residual",
    "Sequential",
    "Sigmoid",
    "SoftmaxLoss",
    "Tanh",
]
