"""Layers and losses beside PyTorch: results, gradients, and weights moved by layout="torch"."""

import numpy as np
import pytest

import needle as ndl
from tests.torch_layers import CASES, Pair, flat, learned

pytestmark = [
    pytest.mark.peer,
    # PyTorch advises against KLDivLoss(reduction="mean") and "same" with even kernels.
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


@pytest.fixture
def one_device(request):
    """The device of --device, or the CPU: the tests of ops have all of them."""
    return getattr(ndl, request.config.getoption("--device") or "cpu")()


@pytest.mark.parametrize("name", CASES)
def test_a_layer_is_torchs(name, one_device):
    device, torch = one_device, pytest.importorskip("torch")
    pair = Pair(CASES[name], torch, device)
    expected = pair.expected()
    args, kwargs = pair.our_arguments(device)
    outputs = flat(pair.ours(*args, **kwargs))
    weighted = zip(outputs, expected[1], strict=True)
    total = sum((y * ndl.Tensor(w, device=device, requires_grad=False)).sum() for y, w in weighted)
    if total.requires_grad:
        total.backward()
    grads = [x.grad.numpy() for x in learned([*args, *kwargs.values()])]
    named = {n: p.grad.numpy() for n, p in pair.ours.named_parameters() if p.grad is not None}
    pair.check([y.numpy() for y in outputs], grads, named, expected)


@pytest.mark.parametrize("name", CASES)
def test_its_state_is_torchs(name):
    torch = pytest.importorskip("torch")
    pair = Pair(CASES[name], torch)
    state = {n: torch.from_dlpack(t) for n, t in pair.ours.state_dict(layout="torch").items()}
    theirs = pair.case.theirs(torch.nn)
    theirs.load_state_dict(state)  # strict, by PyTorch's own rules
    before = pair.theirs.state_dict()
    for key, value in theirs.state_dict().items():
        if key in state:
            np.testing.assert_array_equal(value.numpy(), before[key].numpy())
