"""Training through `torch.compile(backend="needle")`: losses, gradients and statistics beside
PyTorch's own."""

import copy

import pytest

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional
pytestmark = [pytest.mark.peer, pytest.mark.slow]


@pytest.fixture(autouse=True)
def seeded():
    torch._dynamo.reset()
    torch.manual_seed(0)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.qkv = nn.Embedding(11, 8), nn.Linear(8, 24)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 11, bias=False)

    def forward(self, index):
        x = self.words(index)
        q, k, v = (
            each.unflatten(-1, (2, 4)).transpose(1, 2) for each in self.qkv(x).chunk(3, dim=-1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(F.gelu(self.norm(x + y.transpose(1, 2).flatten(2))))


def convolutions():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, stride=2, groups=4, bias=False),
        nn.GroupNorm(2, 8),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 5),
    )


def images(n):
    return torch.randn(4, 3, 12, 12), torch.arange(4) % 5


def texts(n):
    index = torch.randint(0, 11, (3, 7))
    return index, index.roll(-1, 1)


def classified(model, x, y):
    return F.cross_entropy(model(x).flatten(0, -2), y.flatten())


def gated():
    return nn.Sequential(nn.Linear(6, 12), nn.GLU(), nn.Tanh(), nn.Linear(6, 4), nn.LogSoftmax(-1))


def rows(n):
    return torch.randn(9, 6), torch.randint(0, 4, (9,))


CASES = {
    "convolutions": (convolutions, images, classified),
    "attention": (Attention, texts, classified),
    "gates": (gated, rows, lambda m, x, y: F.nll_loss(m(x), y)),
}


@pytest.mark.parametrize("name", CASES)
def test_steps_are_pytorchs(name):
    """A warning, which is an error here, would say that a pass was left to PyTorch."""
    make, batch, loss = CASES[name]
    model = make()
    twin, compiled = copy.deepcopy(model), torch.compile(model, backend="needle")
    mine, other = (torch.optim.SGD(m.parameters(), 0.05, momentum=0.9) for m in (model, twin))
    for n in range(3):
        x, y = batch(n)
        values = []
        for called, optimizer in ((compiled, mine), (twin, other)):
            optimizer.zero_grad()
            value = loss(called, x, y)
            value.backward()
            optimizer.step()
            values.append(value.detach())
        # Sums of some hundred products in float32, in another order, three steps deep.
        torch.testing.assert_close(*values, rtol=1e-5, atol=1e-6)
    for (key, found), wanted in zip(
        model.state_dict().items(), twin.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(found, wanted, rtol=2e-4, atol=2e-5, msg=key)


def test_inputs_get_their_gradients_and_eval_goes_on():
    model = convolutions()
    compiled = torch.compile(model, backend="needle")
    x, y = images(0)
    grads = []
    for called in (compiled, model):
        leaf = x.clone().requires_grad_()
        classified(called, leaf, y).backward()
        grads.append(leaf.grad)
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-6)
    model.eval()
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-5)
