"""A language model with a cache and an output as those of transformers."""

import collections
import dataclasses
from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn


class CacheLayer:
    """Like `transformers.cache_utils.DynamicLayer`."""

    def __init__(self):
        self.keys = self.values = None
        self.dtype = torch.float32

    def update(self, keys, values):
        known = self.keys is not None
        self.keys = torch.cat([self.keys, keys], -2) if known else keys
        self.values = torch.cat([self.values, values], -2) if known else values
        return self.keys, self.values


class Cache:
    """Like `transformers.DynamicCache`: no container that PyTorch knows."""

    def __init__(self):
        self.layers = []
        self.offloading = False

    def update(self, keys, values, number):
        if len(self.layers) <= number:
            self.layers.append(CacheLayer())
        return self.layers[number].update(keys, values)


@dataclasses.dataclass
class Output(collections.OrderedDict):
    """Like `transformers.utils.ModelOutput`: a dataclass and a dict of what is not None."""

    logits: Any = None
    past_key_values: Any = None
    hidden_states: Any = None

    def __post_init__(self):
        for field in dataclasses.fields(self):
            if getattr(self, field.name) is not None:
                self[field.name] = getattr(self, field.name)


class LanguageModel(nn.Module):
    """Tied embeddings and one head of attention, in the signature of transformers' models."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.qkv = nn.Linear(16, 48)
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.embed.weight

    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        past_key_values=None,
        output_hidden_states=None,
        use_cache=True,
    ):
        x = self.embed(input_ids)
        cache = Cache() if past_key_values is None else past_key_values
        q, k, v = self.qkv(x).chunk(3, -1)
        k, v = cache.update(k, v, 0)
        scores = q @ k.transpose(-1, -2) / 4
        if attention_mask is not None:
            scores = scores.masked_fill(attention_mask[:, None, :] == 0, -1e30)
        y = scores.softmax(-1) @ v
        return Output(
            logits=self.head(y),
            past_key_values=cache if use_cache else None,
            hidden_states=(x, y) if output_hidden_states else None,
        )
