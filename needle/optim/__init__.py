"""Optimizers, learning rate schedules, gradient clipping, and moving averages of weights.
Optimizers update parameters in place from the gradients that `backward` computed.

`params` are Tensors or groups of Tensors (see Optimizer); `lr` is the learning rate. A schedule
sets the learning rate of its `optimizer`: after `steps` calls of the schedule's `step`, the rate is
base_lr times a factor. `last_epoch` resumes a schedule (see Schedule). In formulas, p is a
parameter, grad is its gradient, and step is the number of the step, counted from 1. With
`maximize`, grad is negated first, so that steps go up.
"""

from ..common.keywords import name_constructors
from . import lr_scheduler
from .adam import Adam, AdamW
from .adaptive import Adadelta, Adafactor, Adagrad, Adamax, Lion, NAdam, RAdam, RMSprop
from .clip import clip_grad_norm, clip_grad_value
from .ema import EMA
from .lbfgs import LBFGS
from .lr_scheduler import (
    ChainedScheduler,
    ConstantLR,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    CosineLR,
    CyclicLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    MultiplicativeLR,
    MultiStepLR,
    OneCycleLR,
    PolynomialLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)
from .muon import Muon
from .optimizer import Optimizer
from .schedules import Schedule
from .sgd import SGD

__all__ = [
    "EMA",
    "LBFGS",
    "SGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "CosineLR",
    "CyclicLR",
    "ExponentialLR",
    "LambdaLR",
    "LinearLR",
    "Lion",
    "MultiStepLR",
    "MultiplicativeLR",
    "Muon",
    "NAdam",
    "OneCycleLR",
    "Optimizer",
    "PolynomialLR",
    "RAdam",
    "RMSprop",
    "ReduceLROnPlateau",
    "Schedule",
    "SequentialLR",
    "StepLR",
    "clip_grad_norm",
    "clip_grad_value",
    "lr_scheduler",
]

name_constructors(globals()[name] for name in __all__)
