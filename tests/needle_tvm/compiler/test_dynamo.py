"""`torch.compile(model, backend="needle")`, compared with the model itself."""

import warnings
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from needle_tvm.compiler import dynamo

torch = pytest.importorskip("torch")
nn = torch.nn
pytestmark = [pytest.mark.peer, pytest.mark.slow]
FAST = {"stage": "noopt"}
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture(autouse=True)
def seeded():
    with torch.random.fork_rng():
        torch.manual_seed(3)
        dynamo._WARNED.clear()
        torch._dynamo.reset()
        yield


def compiled(model):
    return torch.compile(model, backend=dynamo.needle, options=FAST)


def heard(run):
    """What run() returns, and the warnings of the backend meanwhile."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = run()
    return result, [str(each.message) for each in caught if "needle" in str(each.message)]


def network():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)
    ).eval()


def test_the_entry_point_is_the_backend():
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    line = text.partition("[project.entry-points.torch_dynamo_backends]\n")[2].splitlines()[0]
    name, _, value = line.partition(" = ")
    entry = EntryPoint(name, value.strip('"'), "torch_dynamo_backends")
    assert (name, entry.load()) == ("needle", dynamo.needle)


def test_inference_follows_weights_and_sizes():
    model = network()
    fast = compiled(model)

    def agrees(count):
        x = torch.randn(count, 3, 8, 8)
        torch.testing.assert_close(fast(x), model(x), **CLOSE)

    def run():
        agrees(2)
        agrees(2)
        with torch.no_grad():
            model[4].weight.mul_(2)
            model[1].running_mean.add_(1.0)
        agrees(2)
        model.load_state_dict(network().state_dict())
        agrees(3)
        agrees(5)

    with torch.no_grad():
        _, said = heard(run)
    with torch.inference_mode():
        agrees(2)
    assert said == []


def test_training_runs_in_pytorch_with_one_warning():
    model, x = network(), torch.randn(2, 3, 8, 8)
    fast = compiled(model)

    def run():
        for _ in range(2):
            model.zero_grad()
            fast(x).sum().backward()
        return model[4].weight.grad.clone()

    grad, said = heard(run)
    model.zero_grad()
    model(x).sum().backward()
    torch.testing.assert_close(grad, model[4].weight.grad)
    assert len(said) == 1 and "training" in said[0]


def test_an_unknown_operator_runs_in_pytorch_with_one_warning():
    class Unknown(nn.Module):
        def forward(self, x, k=2):
            y = torch.polygamma(1, x)
            return {"a": y * k, "b": None} if y.sum() > 0 else {"a": -y}

    model, x = Unknown().eval(), torch.randn(3, 4)
    fast = compiled(model)
    with torch.no_grad():
        found, said = heard(lambda: [fast(x), fast(x), fast(x[:2])])
    torch.testing.assert_close(found[1]["a"], model(x)["a"])
    assert len(said) == 1 and "aten.polygamma.default" in said[0]


def test_results_keep_their_dtypes():
    def several(x):
        return x.to(torch.int8) + 1, x.bfloat16() * 2, None, [x > 0, 3]

    x = torch.randn(5)
    with torch.no_grad():
        found, wanted = compiled(several)(x), several(x)
    assert found[2] is None and found[3][1] == 3
    for have, want in zip((*found[:2], found[3][0]), (*wanted[:2], wanted[3][0]), strict=True):
        assert have.dtype == want.dtype
        torch.testing.assert_close(have, want)
