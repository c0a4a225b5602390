"""Optimizers, which update parameters in place from the gradients that `backward` computed."""

from .adam import Adam, AdamW
from .optimizer import Optimizer
from .schedules import CosineLR, ExponentialLR, LambdaLR, LinearLR, Schedule, StepLR
from .sgd import SGD

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "CosineLR",
    "ExponentialLR",
    "LambdaLR",
    "LinearLR",
    "Optimizer",
    "Schedule",
    "StepLR",
]
