"""Tensor constructors and initialisers, and their random numbers."""

import numpy as np
import pytest

import needle as ndl
from needle import init, nn, rng


@pytest.fixture(autouse=True)
def unseeded(monkeypatch):
    """Keep manual_seed in one test from affecting the next."""
    monkeypatch.setattr(rng, "_generator", None)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "bool"])
def test_filled(dtype, device):
    for made, value in [
        (init.zeros(2, 3, device=device, dtype=dtype), 0),
        (init.ones((2, 3), device=device, dtype=dtype), 1),
        (init.constant(2, 3, c=1, device=device, dtype=dtype), 1),
    ]:
        assert (made.shape, made.dtype, made.device) == ((2, 3), dtype, device)
        assert (made.numpy() == np.full((2, 3), value)).all() and not made.requires_grad
    like = init.zeros_like(made)
    assert (like.shape, like.dtype, like.device) == ((2, 3), dtype, device)
    assert init.ones_like(made, dtype="float64", requires_grad=True).requires_grad


def test_shapes(device):
    assert init.ones(device=device).shape == ()
    assert init.rand(0, 3, device=device).shape == (0, 3)
    for bad, error in [((-1,), ValueError), ((2.5,), TypeError), (("a",), TypeError)]:
        with pytest.raises(error):
            init.ones(*bad, device=device)


def draw(device):
    made = (
        init.rand(50, low=-1, high=3, device=device),
        init.randn(50, mean=2, std=3, device=device),
        init.randb(50, p=0.3, device=device),
        init.kaiming_uniform(5, 10, device=device),
        init.kaiming_normal(5, 10, device=device),
        init.xavier_uniform(5, 10, device=device),
        init.xavier_normal(5, 10, device=device),
    )
    return [t.numpy() for t in made]


@pytest.mark.parametrize("seed", [np.random.seed, ndl.manual_seed])
def test_seeds_decide_the_numbers(seed, device):
    seed(1)
    first = draw(device)
    seed(1)
    second = draw(device)
    seed(2)
    third = draw(device)
    for a, b, c in zip(first, second, third, strict=True):
        np.testing.assert_array_equal(a, b)
        assert (a != c).any()


def test_numpys_seed_steers_until_manual_seed_is_called(device):
    np.random.seed(1)
    expected = np.random.uniform(0, 1, 5).astype("float32")
    np.random.seed(1)
    np.testing.assert_array_equal(init.rand(5, device=device).numpy(), expected)
    ndl.manual_seed(3)
    np.random.seed(1)
    assert (init.rand(5, device=device).numpy() != expected).any()


def test_seeded_numbers_do_not_depend_on_the_device():
    values = []
    for d in (ndl.cpu(), ndl.cpu_numpy()):
        ndl.manual_seed(4)
        values.append(draw(d))
    for a, b in zip(*values, strict=True):
        np.testing.assert_array_equal(a, b)


def test_distributions(device):
    ndl.manual_seed(0)
    n = 20_000
    u = init.rand(n, low=-1, high=3, device=device).numpy()
    assert -1 <= u.min() and u.max() <= 3 and abs(u.mean() - 1) < 0.05
    g = init.randn(n, mean=2, std=3, device=device).numpy()
    assert abs(g.mean() - 2) < 0.1 and abs(g.std() - 3) < 0.1
    b = init.randb(n, p=0.3, device=device)
    assert b.dtype == "bool" and abs(b.numpy().mean() - 0.3) < 0.02
    for made, std in [
        (init.kaiming_uniform(200, 100, device=device), np.sqrt(2 / 200)),
        (init.kaiming_normal(200, 100, device=device), np.sqrt(2 / 200)),
        (init.xavier_uniform(200, 100, 2.0, device=device), 2 * np.sqrt(2 / 300)),
        (init.xavier_normal(200, 100, 2.0, device=device), 2 * np.sqrt(2 / 300)),
    ]:
        assert made.shape == (200, 100)
        assert made.numpy().std() == pytest.approx(std, rel=0.03)
    assert init.kaiming_uniform(9, 4, shape=(3, 3, 1, 4), device=device).shape == (3, 3, 1, 4)
    with pytest.raises(ValueError, match="'tanh'"):
        init.kaiming_normal(2, 2, nonlinearity="tanh", device=device)


def test_one_hot(device):
    classes = np.array([[0, 2], [1, 1]])
    for i in (classes, ndl.Tensor(classes, device=device), classes.astype("float32")):
        made = init.one_hot(3, i, device=device, dtype="float64")
        assert made.dtype == "float64" and made.device is device
        np.testing.assert_array_equal(made.numpy(), np.eye(3)[classes])
    with pytest.raises(IndexError, match=r"0\.\.2"):
        init.one_hot(3, np.array([3]), device=device)


@pytest.mark.parametrize("dtype", ["int8", "int64", "bool"])
def test_weights_are_floating(dtype):
    """A draw of few values rounded to integers would be all zeros, and integers do not learn."""
    draws = (ndl.rand, ndl.randn, lambda *shape, **o: ndl.init.kaiming_normal(2, 3, **o))
    for draw in draws:
        with pytest.raises(TypeError, match=f"{dtype}.* not floating point"):
            draw(2, 3, dtype=dtype)
    for layer in (lambda **o: nn.Linear(2, 3, **o), lambda **o: nn.LayerNorm(2, **o)):
        with pytest.raises(TypeError, match=f"{dtype}.* not floating point"):
            layer(dtype=dtype)
    with pytest.raises(TypeError, match=f"Parameter: {dtype}.* not floating point"):
        nn.Parameter(ndl.ones(2, dtype=dtype))
    assert nn.Parameter(ndl.ones(2, dtype=dtype), requires_grad=False).dtype == dtype
    layer = nn.Linear(2, 3)
    before = layer.weight.numpy()
    with pytest.raises(TypeError, match=f"Linear.to: {dtype} is not floating point"):
        layer.to(dtype)
    assert np.array_equal(layer.weight.numpy(), before)


def test_normal_takes_a_mean_and_a_deviation_for_each_place():
    mean = ndl.tensor([[-10.0], [10.0]], dtype="float64")
    std = ndl.tensor(np.linspace(0, 1, 1000))
    drawn = ndl.normal(mean, std)
    assert drawn.shape == (2, 1000) and not drawn.requires_grad and drawn[0, 0].item() == -10
    standard = ((drawn - mean) / std)[:, 1:].numpy()
    assert abs(standard.mean()) < 0.1 and abs(standard.std() - 1) < 0.1
    for call, error, message in (
        (lambda: ndl.normal(mean, -1.0), ValueError, "normal: std -1.0"),
        (lambda: ndl.normal(1.0, -1.0), ValueError, "normal: std -1.0"),
        (lambda: ndl.normal(mean, std - 0.5), ValueError, "normal: std holds -0.5"),
        (lambda: ndl.normal(ndl.zeros(2), std), ValueError, "normal: shapes .* do not broadcast"),
        (lambda: ndl.normal(mean, std, (2,)), TypeError, "normal: give shape only"),
    ):
        with pytest.raises(error, match=message):
            call()
