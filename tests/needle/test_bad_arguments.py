"""Constructors and functions of needle refuse bad arguments by name, before anything is made."""

import numpy as np
import pytest

import needle as ndl
from needle import Tensor, data, init, nn, optim

WORDS, NUMBERS = [None, "a", [], {}, object()], [float("nan"), float("inf"), -1]
NO_EXTENT = [*WORDS, *NUMBERS, 0, 1.5, 10**30]
NO_COUNT = [*NO_EXTENT, True]
NO_RATE = [*WORDS, *NUMBERS, True, 10**400]  # none is a number of at least 0
NO_SHARE = [*NO_RATE, 1.5]


def parameters():
    return [nn.Parameter(np.ones(3, np.float32))]


def optimizer():
    return optim.SGD(parameters())


def rows():
    return data.NDArrayDataset(np.arange(10.0).reshape(5, 2))


# Constructors with valid arguments, and the values that each argument cannot have.
MADE = [
    (nn.Linear, {"in_features": 3, "out_features": 4}, NO_COUNT),
    (nn.Conv, {"in_channels": 4, "out_channels": 4, "groups": 1, "kernel_size": 3}, NO_EXTENT),
    (nn.Conv, {"in_channels": 4, "out_channels": 4, "kernel_size": 3, "stride": 1}, NO_EXTENT),
    (nn.MaxPool2d, {"kernel_size": 2, "dilation": 1}, NO_EXTENT),
    (nn.AvgPool2d, {"kernel_size": 2}, NO_EXTENT),
    (nn.Embedding, {"num_embeddings": 3, "embedding_dim": 4}, NO_COUNT),
    (nn.LayerNorm1d, {"dim": 3}, NO_COUNT),
    (nn.BatchNorm1d, {"dim": 3}, NO_COUNT),
    (nn.BatchNorm2d, {"dim": 3}, NO_COUNT),
    (nn.GroupNorm, {"num_groups": 1, "num_channels": 4}, NO_COUNT),
    (nn.RNNCell, {"input_size": 2, "hidden_size": 3}, NO_COUNT),
    (nn.LSTMCell, {"input_size": 2, "hidden_size": 3}, NO_COUNT),
    (nn.RNN, {"input_size": 2, "hidden_size": 3}, NO_COUNT),
    (nn.LSTM, {"input_size": 2, "hidden_size": 3}, NO_COUNT),
    (nn.AttentionLayer, {"q_features": 4, "num_head": 2, "dim_head": 2}, NO_COUNT),
    (
        nn.TransformerLayer,
        {"q_features": 4, "num_head": 2, "dim_head": 2, "hidden_size": 3},
        NO_COUNT,
    ),
    (
        nn.Transformer,
        {"embedding_size": 4, "hidden_size": 3, "num_layers": 1, "num_head": 2, "dim_head": 2},
        [value for value in NO_COUNT if value != 10**30],
    ),
    (nn.Dropout, {"p": 0.5}, NO_SHARE),
    (nn.CrossEntropyLoss, {"label_smoothing": 0.1}, NO_SHARE),
    (nn.BatchNorm1d, {"dim": 3, "momentum": 0.1}, [v for v in NO_SHARE if v is not None]),
    (optim.SGD, {"params": parameters, "lr": 0.1, "weight_decay": 0.0}, NO_RATE),
    (optim.SGD, {"params": parameters, "momentum": 0.1}, NO_SHARE),
    (optim.Adam, {"params": parameters, "lr": 0.1, "eps": 1e-8}, NO_RATE),
    (optim.RMSprop, {"params": parameters, "alpha": 0.1, "momentum": 0.1}, NO_SHARE),
    (optim.StepLR, {"optimizer": optimizer, "step_size": 3}, NO_COUNT),
    (optim.ExponentialLR, {"optimizer": optimizer, "gamma": 0.1}, NO_RATE),
    (optim.LinearLR, {"optimizer": optimizer, "start_factor": 0.1, "end_factor": 1.0}, NO_RATE),
    (optim.CosineLR, {"optimizer": optimizer, "total": 10}, NO_COUNT),
    (optim.LambdaLR, {"optimizer": optimizer, "lr_lambda": abs}, [*WORDS, 1]),
    (init.kaiming_uniform, {"fan_in": 3, "fan_out": 4}, NO_COUNT),
    (init.xavier_normal, {"fan_in": 3, "fan_out": 4}, NO_COUNT),
    (init.randn, {"std": 1.0}, NO_RATE),
    (init.randb, {"p": 0.5}, NO_SHARE),
    (data.DataLoader, {"dataset": rows, "batch_size": 2}, [v for v in NO_COUNT if v is not None]),
    (data.RandomFlipHorizontal, {"p": 0.5}, NO_SHARE),
    (ndl.manual_seed, {"seed": 1}, [*WORDS, *NUMBERS, 1.5, 10**30]),
    (ndl.set_num_threads, {"count": 1}, [value for value in NO_COUNT if value != 10**30]),
    (ndl.cuda, {"index": 0}, [*WORDS, *NUMBERS]),
]
CASES = [
    pytest.param(make, given, name, bad, id=f"{make.__name__}-{name}")
    for make, given, bad in MADE
    for name in given
]


@pytest.mark.parametrize(("make", "given", "name", "bad"), CASES)
def test_a_bad_argument_is_named(make, given, name, bad):
    lists = ("params", "optimizer", "dataset")
    for value in [None, 5, 1.5] if name in lists else bad:
        made = {k: v() if k in lists else v for k, v in given.items()}
        with pytest.raises((TypeError, ValueError)) as caught:
            make(**{**made, name: value})
        text = str(caught.value)
        assert make.__name__ in text and name.removesuffix("_size") in text, (value, text)
        assert "\n" not in text


@pytest.mark.parametrize("device", ["gpu", 0, [], 1.5])
@pytest.mark.parametrize(
    "make",
    [
        lambda device: Tensor([1.0], device=device),
        lambda device: nn.Linear(2, 3, device=device),
        lambda device: init.zeros(3, device=device),
        lambda device: ndl.backend_ndarray.NDArray([1.0], device=device),
        lambda device: data.DataLoader(rows(), device=device),
    ],
)
def test_what_is_no_device_is_named(make, device):
    with pytest.raises(TypeError, match=r"device .* is a .*, not a Device"):
        make(device)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: nn.Sequential(nn.ReLU(), None), TypeError, r"Sequential: modules\[1\] is a None"),
        (lambda: nn.Sequential([nn.ReLU()]), TypeError, r"Sequential: modules\[0\] is a list"),
        (lambda: nn.Residual(None), TypeError, "Residual: fn is a NoneType"),
        (lambda: nn.RNN(2, 3, nonlinearity=[]), ValueError, r"nonlinearity \[\]"),
        (lambda: optim.SGD(Tensor([1.0])), TypeError, "SGD: params is a Tensor"),
        (lambda: nn.Linear(2, 3).load_state_dict(None), TypeError, "load_state_dict: a NoneType"),
        (
            lambda: nn.Linear(2, 3).load_state_dict({"weight": 1.5, "bias": None}),
            TypeError,
            "load_state_dict: 'weight' is a float",
        ),
        (lambda: optimizer().load_state_dict(None), ValueError, "load_state_dict: SGD: not a"),
        (
            lambda: optimizer().load_state_dict({"state": {0: 5}, "numbers": {}}),
            ValueError,
            "parameter 0 has a int",
        ),
        (lambda: ndl.save(None, None), TypeError, "save: path None is a NoneType"),
        (lambda: ndl.save("x", None), TypeError, "save: a NoneType is not a Module"),
        (lambda: ndl.save("a\0", {}), ValueError, "save: path 'a.x00' has a NUL"),
        (lambda: ndl.load(5), TypeError, "load: path 5 is a int"),
        (lambda: init.ones_like(5), TypeError, "ones_like: array is a int"),
        (lambda: init.zeros(10**30), ValueError, "extent beyond"),
        (lambda: init.xavier_uniform(2, 3, shape="a"), TypeError, "xavier_uniform: shape 'a'"),
        (lambda: optimizer().clip_grad_norm("a"), TypeError, "clip_grad_norm: max_norm 'a'"),
        (lambda: data.NDArrayDataset(5), ValueError, "NDArrayDataset: array.5. has no rows"),
    ],
)
def test_other_bad_arguments_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()
