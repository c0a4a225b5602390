"""Modules: parameters, layers and losses; `needle.nn.functional` has their functions.

Sizes and counts are integers of at least 1. For anything else a constructor raises TypeError or
ValueError, which names the module, the argument and its value. Parameters are made on `device`
(None: the CPU) in `dtype`, the name of a floating dtype. Without `bias` a layer has no bias. Norms
add `eps` to the variance; `dropout` is a probability, and has an effect in train mode alone;
`inplace` is accepted and has no effect.

For those who change this package:

- Layers call functions of `functional`, which call ops.
- Each layer declares PyTorch's names and shapes of its weights; `layout` moves states to and from
  them.
- docs/layers.md lists the layers.
"""

from ..common.keywords import name_constructors
from . import functional
from .activations import (
    CELU,
    ELU,
    GELU,
    SELU,
    Hardsigmoid,
    Hardswish,
    Hardtanh,
    LeakyReLU,
    LogSigmoid,
    LogSoftmax,
    Mish,
    PReLU,
    ReLU,
    ReLU6,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Softsign,
    Tanh,
    Tanhshrink,
    Threshold,
)
from .attention import AttentionLayer, MultiHeadAttention, MultiheadAttention
from .basic import (
    Bilinear,
    CosineSimilarity,
    Dropout,
    Dropout2d,
    Flatten,
    Identity,
    Linear,
    Unflatten,
)
from .cells import GRUCell, LSTMCell, RNNCell
from .containers import ModuleDict, ModuleList, ParameterDict, ParameterList, Residual, Sequential
from .conv import Conv, Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from .embedding import Embedding, EmbeddingBag
from .layout import Form
from .loss import (
    BCELoss,
    BCEWithLogitsLoss,
    CosineEmbeddingLoss,
    CrossEntropyLoss,
    CTCLoss,
    HuberLoss,
    KLDivLoss,
    L1Loss,
    MSELoss,
    NLLLoss,
    SmoothL1Loss,
    SoftmaxLoss,
    TripletMarginLoss,
)
from .module import Module
from .norm import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    GroupNorm,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
    LayerNorm,
    LayerNorm1d,
    RMSNorm,
)
from .parameter import Parameter
from .pool import (
    AdaptiveAvgPool1d,
    AdaptiveAvgPool2d,
    AdaptiveMaxPool2d,
    AvgPool1d,
    AvgPool2d,
    AvgPool3d,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
    PixelShuffle,
    PixelUnshuffle,
    Upsample,
    UpsamplingBilinear2d,
    UpsamplingNearest2d,
)
from .rnn import GRU, LSTM, RNN
from .transformer import (
    RotaryEmbedding,
    SinusoidalEncoding,
    Transformer,
    TransformerDecoder,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
    TransformerLayer,
)

__all__ = [
    "CELU",
    "ELU",
    "GELU",
    "GRU",
    "LSTM",
    "RNN",
    "SELU",
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveMaxPool2d",
    "AttentionLayer",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "BCELoss",
    "BCEWithLogitsLoss",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "Bilinear",
    "CTCLoss",
    "Conv",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "CosineEmbeddingLoss",
    "CosineSimilarity",
    "CrossEntropyLoss",
    "Dropout",
    "Dropout2d",
    "Embedding",
    "EmbeddingBag",
    "Flatten",
    "Form",
    "GRUCell",
    "GroupNorm",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "HuberLoss",
    "Identity",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "KLDivLoss",
    "L1Loss",
    "LSTMCell",
    "LayerNorm",
    "LayerNorm1d",
    "LeakyReLU",
    "Linear",
    "LogSigmoid",
    "LogSoftmax",
    "MSELoss",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "Mish",
    "Module",
    "ModuleDict",
    "ModuleList",
    "MultiHeadAttention",
    "MultiheadAttention",
    "NLLLoss",
    "PReLU",
    "Parameter",
    "ParameterDict",
    "ParameterList",
    "PixelShuffle",
    "PixelUnshuffle",
    "RMSNorm",
    "RNNCell",
    "ReLU",
    "ReLU6",
    "Residual",
    "RotaryEmbedding",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "SinusoidalEncoding",
    "SmoothL1Loss",
    "Softmax",
    "SoftmaxLoss",
    "Softplus",
    "Softsign",
    "Tanh",
    "Tanhshrink",
    "Threshold",
    "Transformer",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
    "TransformerLayer",
    "TripletMarginLoss",
    "Unflatten",
    "Upsample",
    "UpsamplingBilinear2d",
    "UpsamplingNearest2d",
    "functional",
]

name_constructors(globals()[name] for name in __all__)
