"""PyTorch's own operator samples, and that `apps.torch_cases` tells the verdicts apart."""

import random

import pytest

torch = pytest.importorskip("torch")

from apps import torch_cases  # noqa: E402
from needle_tvm.frontend.torch import decompositions  # noqa: E402

SLOW = pytest.mark.slow

# Some that were once wrong or refused.
CHOSEN = "erfc|cummax|searchsorted|as_strided.partial_views|max.reduction_with_dim|masked_scatter"


def misled(x):
    raise TypeError("a decomposition that is at fault")


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: (x.erfc(), x.reshape(2, 3).cummax(1)), torch_cases.RIGHT),
        (lambda x: torch.igamma(x, x), torch_cases.REFUSED),
        (torch.sinh, torch_cases.WRONG),
        pytest.param(lambda x: x if x.sum() > 0 else -x, torch_cases.UNEXPORTED, marks=SLOW),
        pytest.param(torch.cosh, torch_cases.FAULT, marks=SLOW),
    ],
)
def test_verdicts(monkeypatch, function, expected):
    monkeypatch.setitem(decompositions.DECOMPOSITIONS, "sinh.default", lambda x: x.expm1())
    monkeypatch.setitem(decompositions.DECOMPOSITIONS, "cosh.default", misled)
    case = torch_cases.Case("case", function, (torch.linspace(0.5, 2, 6),))
    found = torch_cases._judged("operator", case, compiled=False)
    assert found.verdict == expected, found
    assert "igamma" in found.why or expected != torch_cases.REFUSED


@pytest.mark.slow
def test_samples_of_operators_are_right_or_refused(monkeypatch, capsys):
    pytest.importorskip("expecttest")  # which torch.testing imports
    names = [torch_cases.name_of(info) for info in torch_cases.operators()]
    assert len(names) > 600
    drawn = random.Random(23).sample(names, 4)
    pattern = "|".join([CHOSEN, *drawn]).replace(".", r"\.")
    assert torch_cases.main(["--compiled", "--samples", "1", "--ops", f"^({pattern})$"]) == 0
    said = "\n" + capsys.readouterr().out
    right = [name for name in CHOSEN.split("|") if f"\n{name}:" not in said]
    assert right == CHOSEN.split("|")
