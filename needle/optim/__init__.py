"""Optimizers, which update parameters in place from the gradients that `backward` computed;
learning rate schedules; limits for gradients; moving averages of weights.

`params` are Tensors or groups of them, as Optimizer says; `lr` is the learning rate. A schedule
sets that of its `optimizer`: after `steps` calls of its `step` it is base_lr times a factor. In
formulas p is a parameter, grad its gradient and step the number of the step, from 1 on.
"""

from ..common.keywords import name_constructors
from .adam import Adam, AdamW
from .adaptive import Adafactor, Adagrad, Lion, RMSprop
from .clip import clip_grad_norm, clip_grad_value
from .cycles import OneCycleLR, ReduceLROnPlateau, SequentialLR
from .ema import EMA
from .lbfgs import LBFGS
from .muon import Muon
from .optimizer import Optimizer
from .schedules import (
    CosineAnnealingLR,
    CosineLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    MultiStepLR,
    Schedule,
    StepLR,
)
from .sgd import SGD

__all__ = [
    "EMA",
    "LBFGS",
    "SGD",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "CosineAnnealingLR",
    "CosineLR",
    "ExponentialLR",
    "LambdaLR",
    "LinearLR",
    "Lion",
    "MultiStepLR",
    "Muon",
    "OneCycleLR",
    "Optimizer",
    "RMSprop",
    "ReduceLROnPlateau",
    "Schedule",
    "SequentialLR",
    "StepLR",
    "clip_grad_norm",
    "clip_grad_value",
]

name_constructors(globals()[name] for name in __all__)
