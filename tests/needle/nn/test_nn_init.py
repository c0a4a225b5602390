"""nn.init beside torch.nn.init: what is filled, with which distribution, and what is refused."""

import copy
import math
import pickle

import numpy as np
import pytest

import needle as ndl
from needle import nn, rng
from needle.errors import TraceError
from needle.nn import init
from needle.trace import trace

torch = pytest.importorskip("torch")
theirs = torch.nn.init

# (needle's layer, PyTorch's, names of the matrices in PyTorch)
LAYERS = [
    (lambda fw: fw.Linear(30, 50), ["weight"]),
    (lambda fw: fw.Bilinear(10, 12, 14), ["weight"]),
    (lambda fw: fw.Embedding(30, 50), ["weight"]),
    (lambda fw: fw.Conv1d(8, 12, 5, groups=2), ["weight"]),
    (lambda fw: fw.Conv2d(6, 8, (3, 4)), ["weight"]),
    (lambda fw: fw.Conv3d(4, 5, (2, 3, 2)), ["weight"]),
    (lambda fw: fw.ConvTranspose1d(8, 12, 5), ["weight"]),
    (lambda fw: fw.ConvTranspose2d(6, 8, 3, groups=2), ["weight"]),
    (lambda fw: fw.ConvTranspose3d(4, 5, 2), ["weight"]),
    (lambda fw: fw.LSTM(12, 14), ["weight_ih_l0", "weight_hh_l0"]),
    (lambda fw: fw.GRUCell(12, 14), ["weight_ih", "weight_hh"]),
    (lambda fw: fw.MultiheadAttention(16, 4), ["in_proj_weight", "out_proj.weight"]),
    (lambda fw: fw.MultiheadAttention(16, 4, kdim=6), ["q_proj_weight", "k_proj_weight"]),
]
RANDOM = {
    "uniform_": (-1.0, 3.0),
    "normal_": (1.0, 2.0),
    "trunc_normal_": (0.5, 2.0, -1.0, 1.5),
    "xavier_uniform_": (1.7,),
    "xavier_normal_": (),
    "kaiming_uniform_": (0.3, "fan_out"),
    "kaiming_normal_": (0.0, "fan_in", "relu"),
    "orthogonal_": (1.3,),
}


@pytest.fixture(autouse=True)
def seeded(monkeypatch):
    monkeypatch.setattr(rng, "_generator", np.random.default_rng(7))
    with torch.random.fork_rng():
        torch.manual_seed(7)
        yield


def weights(make, names):
    """(needle's Parameter, PyTorch's) of each name."""
    ours, others = make(nn), make(torch.nn)
    entries = {entry.name: entry.tensor for entry in nn.layout.torch_entries(ours)[0]}
    return [(entries[name], others.get_parameter(name)) for name in names]


def as_torch(parameter):
    return nn.layout.stored("", parameter).outgoing(parameter).numpy()


@pytest.mark.parametrize("layer", range(len(LAYERS)))
def test_fans_and_shapes_are_pytorchs(layer):
    for ours, other in weights(*LAYERS[layer]):
        assert init._fans("f", ours) == theirs._calculate_fan_in_and_fan_out(other)
        for again in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
            assert init._fans("f", again) == init._fans("f", ours)


@pytest.mark.parametrize("shape", [(3, 5), (4, 3, 5), (2, 3, 4, 5)])
def test_other_tensors_count_as_pytorchs(shape):
    fans = theirs._calculate_fan_in_and_fan_out(torch.empty(shape))
    for made in (ndl.zeros(shape), nn.Parameter(ndl.zeros(shape))):
        assert init._fans("f", made) == fans


def test_a_parameter_in_the_place_of_a_layers_has_the_layers_shape():
    layer = nn.Conv2d(3, 4, 5)
    fans = init._fans("f", layer.weight)
    layer.weight = nn.Parameter(ndl.zeros(5, 5, 3, 4))
    assert init._fans("f", layer.weight) == fans == (75, 100)


@pytest.mark.parametrize("name", RANDOM)
@pytest.mark.parametrize("layer", [0, 3, 4])
def test_a_distribution_is_pytorchs(name, layer):
    """The two-sample test of Kolmogorov and Smirnov at a level of 1e-6."""
    mine, others = [], []
    while sum(x.size for x in mine) < 4000:
        ((ours, other),) = weights(*LAYERS[layer])
        assert getattr(init, name)(ours, *RANDOM[name]) is ours
        getattr(theirs, name)(other, *RANDOM[name])
        mine.append(ours.numpy().ravel()), others.append(other.detach().numpy().ravel())
    mine, others = np.concatenate(mine), np.concatenate(others)
    both = np.sort(np.concatenate([mine, others]))
    shares = [np.searchsorted(np.sort(x), both, "right") / x.size for x in (mine, others)]
    assert np.abs(shares[0] - shares[1]).max() < math.sqrt(-math.log(1e-6 / 2) / mine.size)
    assert mine.std() == pytest.approx(others.std(), rel=0.1)
    if "uniform" in name:
        assert np.abs(mine).max() == pytest.approx(np.abs(others).max(), rel=20 / mine.size)


@pytest.mark.parametrize("layer", [0, 2, 4, 5, 7])
def test_orthogonal_rows_or_columns(layer):
    for ours, _ in weights(*LAYERS[layer]):
        init.orthogonal_(ours, 2.0)
        matrix = as_torch(ours).reshape(as_torch(ours).shape[0], -1).astype("float64")
        small = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
        np.testing.assert_allclose(small, 4 * np.eye(len(small)), atol=1e-5)


@pytest.mark.parametrize("layer", range(3, 9))
@pytest.mark.parametrize("groups", [1, 2])
def test_values_without_chance_are_pytorchs(layer, groups):
    for ours, other in weights(*LAYERS[layer]):
        if as_torch(ours).shape[0] % groups:
            with pytest.raises(ValueError, match="dirac_: groups 2"):
                init.dirac_(ours, groups)
            continue
        np.testing.assert_array_equal(
            as_torch(init.dirac_(ours, groups)), theirs.dirac_(other, groups).detach().numpy()
        )
    ((ours, other),) = weights(*LAYERS[0])
    for name, args in (("eye_", ()), ("ones_", ()), ("zeros_", ()), ("constant_", (2.5,))):
        mine = as_torch(getattr(init, name)(ours, *args))
        np.testing.assert_array_equal(mine, getattr(theirs, name)(other, *args).detach().numpy())


def test_sparse_columns():
    layer = nn.Linear(20, 30)
    for share in (0.0, 0.31, 1.0):
        values = as_torch(init.sparse_(layer.weight, share, 0.1))
        expected = theirs.sparse_(torch.empty(30, 20), share, 0.1).numpy()
        np.testing.assert_array_equal((values == 0).sum(0), (expected == 0).sum(0))


def test_gains_are_pytorchs():
    for name in init._GAINS:
        assert init.calculate_gain(name) == theirs.calculate_gain(name)
    for slope in (None, 0, 0.2, math.sqrt(5)):
        ours = init.calculate_gain("leaky_relu", slope)
        assert ours == theirs.calculate_gain("leaky_relu", slope)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_it_writes_in_place_and_records_nothing(dtype):
    layer = nn.Linear(4, 3, dtype=dtype)
    weight, view = layer.weight, layer.weight.detach()[1]
    weight.requires_grad_()
    for call in (init.xavier_normal_, init.ones_, init.orthogonal_, init.trunc_normal_):
        assert call(weight) is weight is layer.weight and weight.dtype == dtype
        assert weight.is_leaf and weight.requires_grad
        np.testing.assert_array_equal(view.numpy(), weight.numpy()[1])
    with pytest.raises(TraceError):
        trace(lambda x: x * init.zeros_(weight), ndl.ones(1))


def test_a_bias_of_pytorchs_shape_stays_as_it_is():
    layer = nn.Linear(3, 4)
    layer.bias = nn.Parameter(ndl.ones(4))
    state = {name: x.numpy() * 2 for name, x in layer.state_dict(layout="torch").items()}
    assert state["bias"].shape == (4,)
    layer.load_state_dict(state, layout="torch")
    assert layer.bias.tolist() == [2.0] * 4
    with pytest.raises(ValueError, match=r"xavier_normal_: shape \(4,\) has no fans"):
        init.xavier_normal_(layer.bias)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: init.uniform_([1.0]), TypeError, "uniform_: tensor is a list"),
        (lambda: init.normal_(ndl.tensor([1])), TypeError, "normal_: tensor is int64"),
        (lambda: init.normal_(ndl.ones(2), 0, -1), ValueError, "normal_: std -1"),
        (lambda: init.xavier_normal_(ndl.ones(2)), ValueError, r"xavier_normal_: shape \(2,\)"),
        (
            lambda: init.kaiming_normal_(nn.Linear(3, 4).bias),
            ValueError,
            r"shape \(4,\) \(PyTorch's shape of \(1, 4\) here\)",
        ),
        (
            lambda: init.kaiming_uniform_(ndl.ones(2, 2), mode="in"),
            ValueError,
            "kaiming_uniform_: mode 'in'",
        ),
        (
            lambda: init.kaiming_uniform_(ndl.ones(2, 2), nonlinearity="gelu"),
            ValueError,
            "calculate_gain: nonlinearity 'gelu'",
        ),
        (lambda: init.trunc_normal_(ndl.ones(2), a=3), ValueError, "trunc_normal_: .*a 3"),
        (lambda: init.eye_(ndl.ones(2)), ValueError, "eye_: shape"),
        (lambda: init.dirac_(ndl.ones(2, 2)), ValueError, "dirac_: shape"),
        (lambda: init.orthogonal_(ndl.ones(2)), ValueError, "orthogonal_: shape"),
        (lambda: init.sparse_(ndl.ones(2), 0.1), ValueError, "sparse_: shape"),
        (lambda: init.sparse_(ndl.ones(2, 2), 1.5), ValueError, "sparse_: sparsity 1.5"),
    ],
)
def test_what_is_refused_names_the_function_and_the_value(call, error, message):
    with pytest.raises(error, match=message):
        call()
