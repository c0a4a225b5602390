"""Layers and losses as functions, with PyTorch's names. They have no state.

Weights have the layouts of needle's layers: (in, out) for `linear`, (k, k, in, out) for `conv2d`.
The `reduction` of a loss is "mean", "sum" or "none"; other values raise ValueError. Norms add `eps`
to the variance, or to the mean square. Activations and dropout accept `inplace`, but it has no
effect.
"""

import inspect
from collections.abc import Callable
from typing import Any

from ...autograd.tensor import Tensor
from ...common.keywords import name_functions, named
from ...ops import (
    celu,
    elu,
    fold,
    gelu,
    hardsigmoid,
    hardswish,
    hardtanh,
    leaky_relu,
    logsigmoid,
    mish,
    pixel_shuffle,
    pixel_unshuffle,
    prelu,
    relu,
    relu6,
    selu,
    sigmoid,
    silu,
    softplus,
    softsign,
    tanh,
    tanhshrink,
    threshold,
    unfold,
)
from .activation import glu, gumbel_softmax, hardshrink, rrelu, softmin, softshrink
from .attention import (
    rotary_embedding,
    scaled_dot_product_attention,
    sinusoidal_encoding,
)
from .basic import (
    alpha_dropout,
    bilinear,
    channel_shuffle,
    cosine_similarity,
    dropout,
    dropout1d,
    dropout2d,
    dropout3d,
    embedding,
    embedding_bag,
    feature_alpha_dropout,
    flatten,
    linear,
    log_softmax,
    logsoftmax,
    one_hot,
    pairwise_distance,
    pdist,
    softmax,
    unflatten,
)
from .conv import conv1d, conv2d, conv_transpose1d, conv_transpose2d
from .conv3d import conv3d, conv_transpose3d
from .ctc import ctc_loss
from .grid import affine_grid, grid_sample
from .loss import (
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    cosine_embedding_loss,
    cross_entropy,
    huber_loss,
    kl_div,
    l1_loss,
    linear_cross_entropy,
    mse_loss,
    nll_loss,
    smooth_l1_loss,
    triplet_margin_loss,
)
from .margin_loss import (
    gaussian_nll_loss,
    hinge_embedding_loss,
    margin_ranking_loss,
    multi_margin_loss,
    multilabel_margin_loss,
    multilabel_soft_margin_loss,
    poisson_nll_loss,
    soft_margin_loss,
    triplet_margin_with_distance_loss,
)
from .norm import (
    batch_norm,
    group_norm,
    instance_norm,
    layer_norm,
    local_response_norm,
    normalize,
    rms_norm,
)
from .padding import pad
from .pool import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_avg_pool3d,
    adaptive_max_pool1d,
    adaptive_max_pool2d,
    adaptive_max_pool3d,
    avg_pool1d,
    avg_pool2d,
    avg_pool3d,
    lp_pool1d,
    lp_pool2d,
    lp_pool3d,
    max_pool1d,
    max_pool2d,
    max_pool3d,
)
from .resize import interpolate

__all__ = [
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
    "affine_grid",
    "alpha_dropout",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "batch_norm",
    "bilinear",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "celu",
    "channel_shuffle",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "cosine_embedding_loss",
    "cosine_similarity",
    "cross_entropy",
    "ctc_loss",
    "dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "elu",
    "embedding",
    "embedding_bag",
    "feature_alpha_dropout",
    "flatten",
    "fold",
    "gaussian_nll_loss",
    "gelu",
    "glu",
    "grid_sample",
    "group_norm",
    "gumbel_softmax",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "hinge_embedding_loss",
    "huber_loss",
    "instance_norm",
    "interpolate",
    "kl_div",
    "l1_loss",
    "layer_norm",
    "leaky_relu",
    "linear",
    "linear_cross_entropy",
    "local_response_norm",
    "log_softmax",
    "logsigmoid",
    "logsoftmax",
    "lp_pool1d",
    "lp_pool2d",
    "lp_pool3d",
    "margin_ranking_loss",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "mish",
    "mse_loss",
    "multi_margin_loss",
    "multilabel_margin_loss",
    "multilabel_soft_margin_loss",
    "nll_loss",
    "normalize",
    "one_hot",
    "pad",
    "pairwise_distance",
    "pdist",
    "pixel_shuffle",
    "pixel_unshuffle",
    "poisson_nll_loss",
    "prelu",
    "relu",
    "relu6",
    "rms_norm",
    "rotary_embedding",
    "rrelu",
    "scaled_dot_product_attention",
    "selu",
    "sigmoid",
    "silu",
    "sinusoidal_encoding",
    "smooth_l1_loss",
    "soft_margin_loss",
    "softmax",
    "softmin",
    "softplus",
    "softshrink",
    "softsign",
    "tanh",
    "tanhshrink",
    "threshold",
    "triplet_margin_loss",
    "triplet_margin_with_distance_loss",
    "unflatten",
    "unfold",
]

_IN_PLACE = (
    "celu elu hardsigmoid hardswish hardtanh leaky_relu mish relu relu6 rrelu selu silu threshold "
    "dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout"
).split()


def _with_inplace(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` with an additional argument `inplace`, which has no effect."""
    parameters = [*inspect.signature(function).parameters.values()]
    last = inspect.Parameter("inplace", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=False)
    count = len(parameters)

    def of_one(x: Tensor, inplace: bool = False) -> Any:
        return function(x)

    def call(*args: Any, inplace: bool = False, **kwargs: Any) -> Any:
        return function(*(args[:count] if len(args) == count + 1 else args), **kwargs)

    made: Any = of_one if count == 1 else call
    made.__name__ = made.__qualname__ = function.__name__
    made.__doc__, made.__module__ = function.__doc__, __name__
    made.__signature__ = inspect.Signature([*parameters, last])
    return made if count == 1 else named(made, function.__name__, is_composed=True)


_OTHERS = [(name, globals()[name]) for name in __all__ if name not in _IN_PLACE]
globals().update({name: _with_inplace(globals()[name]) for name in _IN_PLACE})
globals().update(name_functions(_OTHERS, are_composed=True))
