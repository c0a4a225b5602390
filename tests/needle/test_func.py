"""needle.func beside torch.func, in float64, over drawn functions."""

import numpy as np
import pytest

import needle as ndl
from needle import func, nn

torch = pytest.importorskip("torch")
torch_func = torch.func

# PyTorch warns of functions that it calls itself.
pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings("ignore:`torch:DeprecationWarning")]

UNARY = [
    lambda x: x.sin(),
    lambda x: x.tanh(),
    lambda x: x.exp() * 0.1,
    lambda x: (x * x + 1).sqrt(),
    lambda x: x * x * 0.5,
    lambda x: x.softmax(-1),
    lambda x: 1 / (x * x + 2),
    lambda x: x.cumsum(-1),
]
BINARY = [
    lambda x, y: x + y,
    lambda x, y: x * y,
    lambda x, y: x - 2 * y,
    lambda x, y: x / (y * y + 1.5),
    lambda x, y: x @ y.reshape(-1, 3, 3)[0],
]


def drawn(seed, outputs):
    """A function of two tensors (3, 3) that both libraries run, of `outputs`: a "scalar", a
    "tensor" or a "nest"."""
    draw = np.random.default_rng(seed)
    steps = []
    for i in range(6):
        if draw.random() < 0.5:
            steps.append((UNARY[draw.integers(len(UNARY))], (int(draw.integers(i + 2)),)))
        else:
            picked = tuple(int(n) for n in draw.integers(0, i + 2, 2))
            steps.append((BINARY[draw.integers(len(BINARY))], picked))

    def function(x, y):
        values = [x, y]
        for step, inputs in steps:
            values.append(step(*(values[i] for i in inputs)))
        if outputs == "scalar":
            return (values[-1] * values[-2] + 0.1 * x * y).sum()
        if outputs == "tensor":
            return values[-1][:2].sum(-1)
        return {"a": values[-1][0], "b": [values[-2].sum(), (values[-1] * x)[:, 0]]}

    return function


def arrays(seed, count=2):
    draw = np.random.default_rng(seed + 1000)
    return [draw.standard_normal((3, 3)) for _ in range(count)]


def ours(values, requires_grad=False):
    return tuple(ndl.Tensor(x, requires_grad=requires_grad) for x in values)


def theirs(values):
    return tuple(torch.from_numpy(x) for x in values)


def plain(value):
    if isinstance(value, (ndl.Tensor, torch.Tensor)):
        return value.detach().numpy()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def same(a, b):
    a, b = plain(a), plain(b)
    if isinstance(b, dict):
        assert a.keys() == b.keys()
        a, b = list(a.values()), list(b.values())
    if isinstance(b, list):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            same(x, y)
    else:
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-10)


def no_graph(value):
    if isinstance(value, ndl.Tensor):
        assert not value.requires_grad
    elif isinstance(value, (dict, list, tuple)):
        for item in value.values() if isinstance(value, dict) else value:
            no_graph(item)


ARGNUMS = [0, 1, -1, (0,), (1, 0)]


@pytest.mark.parametrize("seed", range(15))
def test_gradients(seed):
    f, values = drawn(seed, "scalar"), arrays(seed)
    for argnums in ARGNUMS:
        found = func.grad(f, argnums)(*ours(values))
        assert isinstance(found, tuple) == isinstance(argnums, tuple)
        same(found, torch_func.grad(f, argnums)(*theirs(values)))
        no_graph(found)
    mine, other = (
        func.grad_and_value(f)(*ours(values)),
        torch_func.grad_and_value(f)(*theirs(values)),
    )
    same(mine, other)
    same(func.value_and_grad(f)(*ours(values)), other[::-1])
    same(func.hessian(f, (0, 1))(*ours(values)), torch_func.hessian(f, (0, 1))(*theirs(values)))


@pytest.mark.parametrize("outputs", ["scalar", "tensor", "nest"])
@pytest.mark.parametrize("seed", range(15, 25))
def test_products_and_jacobians(seed, outputs):
    f, values = drawn(seed, outputs), arrays(seed)
    tangents = arrays(seed + 1)
    mine = func.jvp(f, ours(values), ours(tangents))
    same(mine, torch_func.jvp(f, theirs(values), theirs(tangents)))
    no_graph(mine)
    result, pull = func.vjp(f, *ours(values))
    other, other_pull = torch_func.vjp(f, *theirs(values))
    same(result, other)
    draw = np.random.default_rng(seed)
    for _ in range(2):
        given = {"scalar": [()], "tensor": [(2,)], "nest": [(3,), (), (3,)]}[outputs]
        parts = [np.asarray(draw.standard_normal(shape)) for shape in given]
        a, b = ours(parts), theirs(parts)
        a, b = ({"a": x[0], "b": list(x[1:])} if outputs == "nest" else x[0] for x in (a, b))
        found = pull(a)
        same(found, other_pull(b))
        no_graph(found)
    for name in ("jacrev", "jacfwd"):
        for argnums in (1, (0, 1)):
            mine = getattr(func, name)(f, argnums)(*ours(values))
            same(mine, getattr(torch_func, name)(f, argnums)(*theirs(values)))
            no_graph(mine)


@pytest.mark.parametrize("seed", range(30, 36))
def test_nested(seed):
    """Every function inside every other, and by an outer argument too."""
    f, values = drawn(seed, "scalar"), arrays(seed)
    direction = arrays(seed + 1)[0]

    def nestings(m, tensor):
        v = tensor(direction)
        yield lambda x, y: m.grad(lambda x: (m.grad(f)(x, y) * v).sum() * f(x, y))(x)
        yield lambda x, y: m.jvp(lambda x: m.grad(f)(x, y), (x,), (v,))[1]
        yield lambda x, y: m.grad(lambda x: (m.jvp(f, (x, y), (v, x))[1] ** 2).sum())(x)
        yield lambda x, y: m.vjp(lambda z: m.jacrev(f, 1)(z, y), x)[1](v)[0]
        yield lambda x, y: m.jacfwd(lambda x: m.vjp(f, x, y)[1](f(x, x))[0].sum())(x)
        yield lambda x, y: m.hessian(lambda x: f(x, y) * f(y, x))(x)

    mine = nestings(func, lambda x: ndl.Tensor(x, requires_grad=False))
    for a, b in zip(mine, nestings(torch_func, torch.from_numpy), strict=True):
        found = a(*ours(values))
        same(found, b(*theirs(values)))
        no_graph(found)


@pytest.mark.parametrize("seed", range(40, 46))
def test_what_is_closed_over_gets_gradients(seed):
    f, values = drawn(seed, "scalar"), arrays(seed)
    found = []
    for m, x, w in (
        (func, ndl.Tensor(values[0], requires_grad=False), ndl.Tensor(values[1])),
        (torch_func, torch.from_numpy(values[0]), torch.tensor(values[1], requires_grad=True)),
    ):
        between = w.sin()  # a graph from before the call
        penalty = (m.grad(lambda x, f=f, b=between: f(x, b))(x) ** 2).sum()
        (penalty + f(x, between)).backward()
        found.append(w.grad.numpy())
    same(*found)
    x, w = ours(values, requires_grad=True)
    with ndl.no_grad():
        found = func.grad(lambda x: f(x, w))(x)
    assert not found.requires_grad and x.grad is None and w.grad is None
    same(found, torch_func.grad(f)(*theirs(values)))


def test_gradients_stop_where_no_grad_says():
    def function(m, x):
        with m.no_grad():
            y = x * x
        return (x * y).sum()

    (x,), (y,) = ours(arrays(1, 1)), theirs(arrays(1, 1))
    same(func.grad(lambda x: function(ndl, x))(x), torch_func.grad(lambda x: function(torch, x))(y))
    with ndl.no_grad():
        same(func.grad(lambda x: (x * x).sum())(x), 2 * y)


def test_aux_nests_and_unused_arguments():
    (x, y), (a, b) = ours(arrays(2)), theirs(arrays(2))

    def function(p, scale=1.0):
        return (p["w"] * p["l"][0]).sum() * scale, {"twice": p["w"] * 2}

    for mine, other in (
        (func.grad, torch_func.grad),
        (func.jacrev, torch_func.jacrev),
        (func.jacfwd, torch_func.jacfwd),
        (func.grad_and_value, torch_func.grad_and_value),
    ):
        # PyTorch's Jacobians take no keywords.
        given = {} if mine in (func.jacrev, func.jacfwd) else {"scale": 2.0}
        found = mine(function, has_aux=True)({"w": x, "l": [y]}, **given)
        same(found, other(function, has_aux=True)({"w": a, "l": [b]}, **given))
        no_graph(found)
    given = {"w": x, "l": [y]}
    (value, aux), grads = func.value_and_grad(function, has_aux=True)(given)
    same(
        [grads, [value, aux]], torch_func.grad_and_value(function, has_aux=True)({"w": a, "l": [b]})
    )
    same(
        func.vjp(lambda p: function(p), given, has_aux=True)[2],
        torch_func.vjp(lambda p: function(p), {"w": a, "l": [b]}, has_aux=True)[2],
    )
    assert func.grad(lambda x, y: y.sum())(x, y).tolist() == np.zeros((3, 3)).tolist()
    for name in ("jacrev", "jacfwd"):
        found = getattr(func, name)(lambda x, y: {"a": x, "b": ndl.ones(2)}, (0, 1))(x, y)
        expected = getattr(torch_func, name)(
            lambda x, y: {"a": x, "b": torch.ones(2, dtype=torch.float64) + 0 * x[0, :2]}, (0, 1)
        )(a, b)
        same(found, expected)


def test_functional_call():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.BatchNorm1d(4))
    x = ndl.rand(5, 3)
    weights = {name: p.detach() * 2 for name, p in model.named_parameters()}
    before = {name: p.numpy() for name, p in model.named_tensors()}
    other = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.BatchNorm1d(4))
    other.load_state_dict(weights, strict=False)
    found = func.functional_call(model, weights, x)
    assert found.numpy().tobytes() == other(x).numpy().tobytes()
    gradients = func.grad(lambda w: (func.functional_call(model, w, (x,)) ** 3).sum())(weights)
    (other(x) ** 3).sum().backward()
    for name, p in other.named_parameters():
        np.testing.assert_allclose(gradients[name].numpy(), p.grad.numpy(), rtol=1e-5, atol=1e-6)
    halves = [dict(list(weights.items())[:2]), dict(list(weights.items())[2:])]
    assert func.functional_call(model, halves, x).numpy().tobytes() == found.numpy().tobytes()
    buffers = {"modules.2.running_mean": ndl.ones(4), "modules.2.running_var": ndl.ones(4)}
    found_mean = model.modules[2].running_mean.numpy()
    model.eval()
    shifted = func.functional_call(model, buffers, x)
    assert not np.allclose(shifted.numpy(), model(x).numpy())
    model.train()
    func.functional_call(model, {**weights, **buffers}, x)  # writes into none of its own
    assert model.modules[2].running_mean.numpy().tobytes() == found_mean.tobytes()
    for name, p in model.named_parameters():
        assert p.numpy().tobytes() == before[name].tobytes(), name
    for bad, error, text in (
        ({"nothing": x}, KeyError, "has no .'nothing'."),
        ({"modules.0.weight": 5}, TypeError, "'modules.0.weight' is a int"),
        ({"modules.0.weight": x}, ndl.ShapeError, r"has shape \(3, 4\), not \(5, 3\)"),
    ):
        with pytest.raises(error, match=text):
            func.functional_call(model, bad, x)
    with pytest.raises(KeyError, match="also has"):
        func.functional_call(model, buffers, x, strict=True)


def first(x):
    return x[0]


ERRORS = [
    (lambda f, x: f(lambda x: x.sum(), 3)(x), ValueError, "argnums 3 is out of range"),
    (lambda f, x: f(lambda x: x.sum(), (0, -1))(x), ValueError, "twice"),
    (lambda f, x: f(lambda x: x.sum(), 1.5)(x), TypeError, r"argnums 1\.5"),
    (lambda f, x: f(lambda x: x.sum())(2.0), TypeError, "hold a float"),
    (lambda f, x: f(lambda x: x.sum())(ndl.arange(3)), TypeError, r"int64.* has no derivative"),
    (lambda f, x: f(lambda x: 5.0)(x), TypeError, "returns a float"),
    (lambda f, x: f(lambda x: x.sum(), has_aux=True)(x), TypeError, "has_aux"),
    (lambda f, x: f(5)(x), TypeError, "not a function"),
]


@pytest.mark.parametrize("name", ["grad", "value_and_grad", "grad_and_value", "jacrev", "jacfwd"])
@pytest.mark.parametrize(("call", "error", "text"), ERRORS)
def test_errors(name, call, error, text):
    with pytest.raises(error, match=rf"^{name}: .*{text}"):
        call(getattr(func, name), ndl.ones(3, 3))


def test_more_errors():
    x = ndl.ones(2)
    with pytest.raises(
        ndl.ShapeError, match=r"^grad: func must return a Tensor without axes.*\[2\]"
    ):
        func.grad(lambda x: x)(x)
    _, pull = func.vjp(lambda x: {"a": x}, x)
    with pytest.raises(ValueError, match=r"^vjp: cotangent is a tensor, expected a dict"):
        pull(x)
    with pytest.raises(
        ndl.ShapeError, match=r"^vjp: cotangent_a has shape \(3,\), expected \(2,\)"
    ):
        pull({"a": ndl.ones(3)})
    with pytest.raises(TypeError, match=r"^jvp: primals and tangents must be tuples"):
        func.jvp(first, x, x)
    with pytest.raises(ValueError, match=r"^jvp: tangent has 2 items, expected 1"):
        func.jvp(first, (x,), (x, x))
