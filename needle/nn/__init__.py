"""Modules: parameters and layers.

Sizes and counts are integers of at least 1. For anything else a constructor raises TypeError or
ValueError, which names the module, the argument and its value.
"""

from .attention import AttentionLayer, MultiHeadAttention, Transformer, TransformerLayer
from .basic import (
    GELU,
    Dropout,
    Flatten,
    Identity,
    Linear,
    ReLU,
    Residual,
    Sequential,
    Sigmoid,
    SiLU,
    SoftmaxLoss,
    Tanh,
)
from .conv import AvgPool2d, Conv, MaxPool2d
from .embedding import Embedding
from .loss import CrossEntropyLoss, MSELoss
from .module import Module, Parameter
from .norm import BatchNorm1d, BatchNorm2d, GroupNorm, LayerNorm1d
from .rnn import LSTM, RNN, LSTMCell, RNNCell

__all__ = [
    "GELU",
    "LSTM",
    "RNN",
    "AttentionLayer",
    "AvgPool2d",
    "BatchNorm1d",
    "BatchNorm2d",
    "Conv",
    "CrossEntropyLoss",
    "Dropout",
    "Embedding",
    "Flatten",
    "GroupNorm",
    "Identity",
    "LSTMCell",
    "LayerNorm1d",
    "Linear",
    "MSELoss",
    "MaxPool2d",
    "Module",
    "MultiHeadAttention",
    "Parameter",
    "RNNCell",
    "ReLU",
    "Residual",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "SoftmaxLoss",
    "Tanh",
    "Transformer",
    "TransformerLayer",
]
