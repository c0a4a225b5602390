"""Whole PyTorch models for many sizes: right at bounds, at 1, at primes and beside tiles."""

import pytest

from needle.sizes.dims import Dim
from tests.needle_tvm.compiler.test_torch_kernels import with_statistics
from tests.needle_tvm.compiler.torch_checks import agree_at

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional
pytestmark = pytest.mark.peer
N, T = Dim("n", max=64), Dim("t", max=65)
COUNTS = [(n,) for n in (1, 2, 7, 8, 9, 15, 16, 17, 31, 63, 64)]
PAIRS = [
    *((1, t) for t in (1, 2, 7, 8, 9, 64, 65)),
    *((n, 1) for n in (2, 7, 8, 9, 63, 64)),
    *((n, t) for n, t in zip((3, 8, 9, 13, 15, 16, 17), (13, 8, 7, 15, 16, 17, 31), strict=True)),
    (64, 65),
]


def stages(first, *others):
    """A stage in each run of CI, and others in `long` alone."""
    marks = [(first, pytest.mark.slow), *((other, pytest.mark.long) for other in others)]
    return pytest.mark.parametrize("stage", [pytest.param(s, marks=mark) for s, mark in marks])


@pytest.fixture(autouse=True)
def seeded():
    with torch.random.fork_rng():
        torch.manual_seed(5)
        yield


class Block(nn.Module):
    """Attention and two dense layers."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, mask=None, causal=False):
        n, t, _ = x.shape
        parts = (p.view(n, t, self.heads, -1).transpose(1, 2) for p in self.qkv(x).chunk(3, -1))
        heads = functional.scaled_dot_product_attention(*parts, attn_mask=mask, is_causal=causal)
        x = self.norm(x + self.out(heads.transpose(1, 2).reshape(n, t, -1)))
        return self.second(x + self.down(functional.gelu(self.up(x))))


class Encoder(nn.Module):
    """BERT's: words and positions, blocks under a padding mask, a class from the first word."""

    def __init__(self, width=32, heads=4, layers=2):
        super().__init__()
        self.words, self.places = nn.Embedding(100, width), nn.Embedding(65, width)
        self.norm = nn.LayerNorm(width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.pool, self.head = nn.Linear(width, width), nn.Linear(width, 5)

    def forward(self, words, seen):
        x = self.norm(self.words(words) + self.places(torch.arange(words.shape[1])))
        for block in self.blocks:
            x = block(x, seen[:, None, None, :])
        return self.head(torch.tanh(self.pool(x[:, 0])))


def sentences(n, t):
    seen = torch.rand(n, t) > 0.3
    seen[:, 0] = True
    return torch.randint(0, 100, (n, t)), seen


SENTENCES = {"words": {0: N, 1: T}, "seen": {0: N, 1: T}}


@pytest.mark.slow
def test_an_encoder():
    model = Encoder(16, 2, 1)
    agree_at(model, sentences, SENTENCES, PAIRS[::4], "noopt")


@stages("tuned", "fused", "noopt")
def test_an_encoder_at_every_stage(stage):
    agree_at(Encoder(), sentences, SENTENCES, PAIRS, stage)


class Decoder(nn.Module):
    """Next words, under a causal mask that is made from the number of words, or under none."""

    def __init__(self, how, width=16, heads=2):
        super().__init__()
        self.how, self.words, self.block = how, nn.Embedding(50, width), Block(width, heads)
        self.head = nn.Linear(width, 50)

    def forward(self, words):
        x, t = self.words(words), words.shape[1]
        if self.how == "causal":
            return self.head(self.block(x, causal=True))
        mask = torch.ones(t, t, dtype=torch.bool).tril()
        if self.how == "added":
            mask = torch.full((t, t), float("-inf")).triu(1)
        return self.head(self.block(x, mask))[:, -1:]


@stages("tuned", "fused")
@pytest.mark.parametrize("how", ["causal", "boolean", "added"])
def test_decoders(stage, how):
    def words(n, t):
        return (torch.randint(0, 50, (n, t)),)

    agree_at(Decoder(how), words, {0: {0: N, 1: T}}, PAIRS, stage)


@pytest.mark.slow
@pytest.mark.parametrize("first", [True, False])
def test_an_encoder_of_torch(first):
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=first, activation="gelu")
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def vectors(n, t):
        return (torch.randn(n, t, 16),)

    agree_at(model, vectors, {0: {0: N, 1: T}}, PAIRS, "tuned", 1e-4)


def images(n, height=16, width=18):
    return (torch.randn(n, 3, height, width),)


def network(pooled):
    return with_statistics(
        nn.Sequential(
            *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(8, 8, 3, stride=2), nn.AdaptiveAvgPool2d(pooled), nn.Flatten()),
            nn.Linear(8 * pooled**2, 4),
        )
    )


@stages("tuned", "fused", "noopt")
def test_images_of_one_size(stage):
    agree_at(network(2), images, {0: {0: N}}, COUNTS, stage)


@stages("fused", "noopt")
def test_images_of_every_size(stage):
    h, w = Dim("h", min=8, max=30), Dim("w", min=8, max=30)

    def squares(n, height, width):
        return images(n, height + 8, width + 8)

    sizes = [(1, 0, 0), (64, 22, 22), (1, 1, 22), (7, 5, 9), (8, 8, 8), (3, 15, 1), (2, 22, 7)]
    agree_at(network(1), squares, {0: {0: N, 2: h, 3: w}}, sizes, stage)


@stages("tuned", "fused", "noopt")
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_recurrences_of_every_batch(kind, stage):
    model = getattr(nn, kind)(10, 7, num_layers=2, batch_first=True)

    def steps(n):
        return (torch.randn(n, 5, 10),)

    agree_at(model, steps, {0: {0: N}}, COUNTS, stage)


def test_weights_are_packed_once():
    """The compiled code has no size in it: batches of any size read one packed weight."""
    model = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10)).eval()
    exe = agree_at(model, lambda n: (torch.randn(n, 64),), {0: {0: N}}, COUNTS, "tuned")
    assert "if n <= T.int64(1)" in exe.script
    model[2].weight.data *= 2
    exe.set_params({name: value.detach() for name, value in model.named_parameters()})
    x = torch.randn(33, 64)
    assert abs(exe(x).numpy() - model(x).detach().numpy()).max() < 1e-4
