"""needle's default arguments and initial values are PyTorch's, but for those named here."""

import inspect

import numpy as np
import pytest

from needle import nn, rng

torch = pytest.importorskip("torch")
from docs import defaults  # noqa: E402

pytestmark = pytest.mark.peer

# docs/coming-from-pytorch.md says so of each.
DIFFERENT = {
    "nn.Conv": {"padding"},
    "nn.Softmax": {"dim"},
    "nn.LogSoftmax": {"dim"},
    "nn.Softmin": {"dim"},
    "nn.ModuleDict": {"items"},
    "nn.ModuleList": {"items"},
    "nn.ParameterDict": {"items"},
    "nn.ParameterList": {"items"},
    "nn.functional.softmax": {"dim"},
    "nn.functional.log_softmax": {"dim"},
    "nn.functional.softmin": {"dim"},
}


def test_default_arguments_are_pytorchs():
    found = {}
    for name, mine, theirs in defaults.pairs():
        _, ours, others = defaults.arguments(mine, theirs)
        if ours.keys() & others.keys():
            found[name] = ours.keys() & others.keys()
    assert found == DIFFERENT


def test_every_layer_with_tensors_is_compared():
    compared = {name for name, _, _ in defaults.LAYERS}
    has_tensors = {
        name.removeprefix("nn.")
        for name, mine, _ in defaults.pairs()
        if inspect.isclass(mine) and issubclass(mine, nn.Module)
        for source in [inspect.getsource(mine)]
        if "Parameter(" in source or mine._parameter_names
    }
    assert has_tensors <= compared | {"ParameterList", "ParameterDict"}


@pytest.mark.slow
@pytest.mark.parametrize("layer", range(len(defaults.LAYERS)))
def test_initial_values_have_pytorchs_distribution(layer, monkeypatch):
    """The two-sample test of Kolmogorov and Smirnov at a level of 1e-6 for each tensor; and the
    largest of n uniform values is below 1 - 20 / n of their bound once in e ** 20 draws."""
    monkeypatch.setattr(rng, "_generator", np.random.default_rng(1))
    count = 4000
    with torch.random.fork_rng():
        torch.manual_seed(1)
        mine, theirs = (
            defaults.initial(each, *defaults.LAYERS[layer], count) for each in (nn, torch.nn)
        )
    assert mine.keys() == theirs.keys()
    for name, ours in mine.items():
        others = theirs[name]
        if np.ptp(others) == 0:
            assert np.array_equal(np.unique(ours), np.unique(others)), name
            continue
        both = np.sort(np.concatenate([ours, others]))
        shares = [np.searchsorted(np.sort(x), both, "right") / x.size for x in (ours, others)]
        distance = np.abs(shares[0] - shares[1]).max()
        few = min(ours.size, others.size)
        assert distance < np.sqrt(-np.log(1e-6 / 2) / few), name
        kinds = [defaults.described(x).partition(",")[0] for x in (ours, others)]
        assert kinds[0] == kinds[1], name
        if kinds[0] == "uniform":
            edges = np.abs(ours).max(), np.abs(others).max()
            assert edges[0] == pytest.approx(edges[1], rel=20 / few), name


@pytest.mark.slow
def test_the_page_has_the_present_tables(monkeypatch):
    monkeypatch.setattr(rng, "_generator", None)
    with torch.random.fork_rng():
        assert defaults.tables() in defaults.PAGE.read_text(), "python docs/defaults.py --write"
