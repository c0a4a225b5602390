"""Optimizers: they change parameters in place, from the gradients that `backward` left there."""

from .adam import Adam
from .optimizer import Optimizer
from .sgd import SGD

__all__ = ["SGD", "Adam", "Optimizer"]
