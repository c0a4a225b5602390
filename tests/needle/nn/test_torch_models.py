"""Models whose code is the same for needle.nn and torch.nn, with PyTorch's weights.

Their parameters have the names of torchvision's ResNet-18 and of the BERT of Hugging Face.
"""

import numpy as np
import pytest

import needle as ndl
from needle import nn

pytestmark = pytest.mark.peer


def resnet18(t, width):
    """torchvision's ResNet-18 with another width."""

    class BasicBlock(t.Module):
        def __init__(self, inputs, outputs, stride):
            super().__init__()
            self.conv1 = t.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
            self.bn1 = t.BatchNorm2d(outputs)
            self.relu = t.ReLU(inplace=True)
            self.conv2 = t.Conv2d(outputs, outputs, 3, padding=1, bias=False)
            self.bn2 = t.BatchNorm2d(outputs)
            self.downsample = None
            if stride != 1 or inputs != outputs:
                self.downsample = t.Sequential(
                    t.Conv2d(inputs, outputs, 1, stride, bias=False), t.BatchNorm2d(outputs)
                )

        def forward(self, x):
            y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
            return self.relu(y + (x if self.downsample is None else self.downsample(x)))

    class ResNet(t.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = t.Conv2d(3, width, kernel_size=7, stride=2, padding=3, bias=False)
            self.bn1 = t.BatchNorm2d(width)
            self.relu = t.ReLU(inplace=True)
            self.maxpool = t.MaxPool2d(kernel_size=3, stride=2, padding=1)
            inputs = width
            for i in range(4):
                outputs = width * 2**i
                blocks = BasicBlock(inputs, outputs, 2 if i else 1), BasicBlock(outputs, outputs, 1)
                setattr(self, f"layer{i + 1}", t.Sequential(*blocks))
                inputs = outputs
            self.avgpool = t.AdaptiveAvgPool2d((1, 1))
            self.flatten = t.Flatten()
            self.fc = t.Linear(inputs, 10)

        def forward(self, x):
            x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
            x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
            return self.fc(self.flatten(self.avgpool(x)))

    return ResNet()


def bert(t, size, heads, layers, words, length):
    """The encoder of BERT."""

    def module(**parts):
        made = t.Module()
        for name, part in parts.items():
            setattr(made, name, part)
        return made

    class SelfAttention(t.Module):
        def __init__(self):
            super().__init__()
            self.query, self.key, self.value = (t.Linear(size, size) for _ in range(3))

        def forward(self, x):
            batch, count, _ = x.shape

            def split(y):
                return y.reshape(batch, count, heads, size // heads).permute(0, 2, 1, 3)

            q, k, v = split(self.query(x)), split(self.key(x)), split(self.value(x))
            y = t.functional.scaled_dot_product_attention(q, k, v)
            return y.permute(0, 2, 1, 3).reshape(batch, count, size)

    class Output(t.Module):
        def __init__(self, inputs):
            super().__init__()
            self.dense = t.Linear(inputs, size)
            self.LayerNorm = t.LayerNorm(size, eps=1e-12)

        def forward(self, y, x):
            return self.LayerNorm(self.dense(y) + x)

    class Layer(t.Module):
        def __init__(self):
            super().__init__()
            self.attention = module(self=SelfAttention(), output=Output(size))
            self.intermediate = module(dense=t.Linear(size, 4 * size))
            self.output = Output(4 * size)

        def forward(self, x):
            x = self.attention.output(self.attention.self(x), x)
            return self.output(t.functional.gelu(self.intermediate.dense(x)), x)

    class Bert(t.Module):
        def __init__(self):
            super().__init__()
            self.embeddings = module(
                word_embeddings=t.Embedding(words, size, padding_idx=0),
                position_embeddings=t.Embedding(length, size),
                token_type_embeddings=t.Embedding(2, size),
                LayerNorm=t.LayerNorm(size, eps=1e-12),
            )
            self.encoder = module(layer=t.ModuleList([Layer() for _ in range(layers)]))
            self.pooler = module(dense=t.Linear(size, size))

        def forward(self, numbers, positions, types):
            parts = self.embeddings
            x = parts.word_embeddings(numbers) + parts.position_embeddings(positions)
            x = parts.LayerNorm(x + parts.token_type_embeddings(types))
            for layer in self.encoder.layer:
                x = layer(x)
            return x, t.functional.tanh(self.pooler.dense(x[:, 0]))

    return Bert()


def loaded(torch, make, path, inputs):
    """(ours, theirs) with the same weights, moved by a file as the Hub has it."""
    from safetensors.torch import save_file

    torch.manual_seed(0)
    theirs, ours = make(torch.nn), make(nn).eval()
    for _ in range(8):  # so that the running statistics are those of the inputs
        theirs(*map(torch.tensor, inputs))
    theirs.eval()
    save_file(theirs.state_dict(), path)
    ours.load_state_dict(ndl.load(path), layout="torch")
    assert list(ours.state_dict(layout="torch")) == [
        name for name in theirs.state_dict() if not name.endswith("num_batches_tracked")
    ]
    return ours, theirs


def check(torch, make, path, inputs):
    ours, theirs = loaded(torch, make, path, inputs)
    found, expected = ours(*map(ndl.Tensor, inputs)), theirs(*map(torch.tensor, inputs))
    if not isinstance(found, tuple):
        found, expected = (found,), (expected,)
    for mine, other in zip(found, expected, strict=True):
        other = other.detach().numpy()
        assert np.std(other, axis=0).max() > 0.01  # the inputs matter
        np.testing.assert_allclose(mine.numpy(), other, rtol=1e-5, atol=1e-5)


def test_a_resnet_18(tmp_path):
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(0).normal(size=(2, 3, 48, 48)).astype("float32")
    check(torch, lambda t: resnet18(t, 8), tmp_path / "resnet.safetensors", [x])


def test_a_bert(tmp_path):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    inputs = [rng.integers(0, n, (2, 12)) for n in (100, 20, 2)]
    check(torch, lambda t: bert(t, 64, 4, 3, 100, 20), tmp_path / "bert.safetensors", inputs)
