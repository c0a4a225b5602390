"""A training script as it is written for PyTorch, run by both frameworks: only imports differ."""

import math

import numpy as np
import pytest

import needle as ndl

torch = pytest.importorskip("torch")


def define(fw):
    """A GPT in small."""
    nn, F = fw.nn, fw.nn.functional

    class Block(nn.Module):
        def __init__(self, width, heads, length):
            super().__init__()
            self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp = nn.Sequential(
                nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width), nn.Dropout(0.0)
            )
            mask = fw.tril(fw.ones(length, length)).view(1, 1, length, length)
            self.register_buffer("mask", mask)
            self.heads = heads

        def forward(self, x):
            b, t, c = x.size()
            q, k, v = self.c_attn(self.ln_1(x)).split(c, dim=2)
            q, k, v = (y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in (q, k, v))
            scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            scores = scores.masked_fill(self.mask[:, :, :t, :t] == 0, float("-inf"))
            y = F.softmax(scores, dim=-1) @ v
            x = x + self.c_proj(y.transpose(1, 2).contiguous().view(b, t, c))
            return x.add(self.mlp(self.ln_2(x)))

    class GPT(nn.Module):
        def __init__(self, vocab, width, length):
            super().__init__()
            self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(length, width)
            self.h = nn.ModuleList([Block(width, 2, length) for _ in range(2)])
            self.lm_head = nn.Linear(width, vocab, bias=False)
            self.wte.weight = self.lm_head.weight
            self.apply(self._init_weights)
            for name, p in self.named_parameters():
                if name.endswith("c_proj.weight"):
                    nn.init.normal_(p, mean=0.0, std=0.02 / math.sqrt(4))

        def _init_weights(self, module):
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, mean=0.0, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                module.weight.data.normal_(mean=0.0, std=0.02)

        def forward(self, idx, targets=None):
            pos = fw.arange(0, idx.size(1), dtype=fw.long, device=idx.device).unsqueeze(0)
            x = self.wte(idx) + self.wpe(pos)
            for block in self.h:
                x = block(x)
            logits = self.lm_head(x)
            if targets is None:
                return logits[:, [-1], :], None
            flat = logits.view(-1, logits.size(-1))
            return logits, F.cross_entropy(flat, targets.view(-1), ignore_index=-1)

        @fw.no_grad()
        def generate(self, idx, steps, top_k):
            for _ in range(steps):
                logits, _ = self(idx)
                logits = logits[:, -1, :] / 0.8
                v, _ = fw.topk(logits, min(top_k, logits.size(-1)))
                logits = fw.where(logits < v[:, [-1]], -float("Inf"), logits)
                idx = fw.cat(
                    (idx, fw.argmax(F.softmax(logits, dim=-1), dim=1, keepdim=True)), dim=1
                )
            return idx

    return GPT(11, 8, 6)


def train(fw, model, tokens):
    """The log of a few steps, the weights of their moving average, and what the model says."""
    device = fw.device("cpu")
    model = model.double().to(device)
    average = [p.detach().clone() for p in model.parameters()]
    optimizer = fw.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    data, log = fw.tensor(tokens, dtype=fw.long).to(device, non_blocking=True), []
    model.train()
    for step in range(4):
        x, y = data[:, :-1].contiguous(), data[:, 1:].clone()
        y[:, 0].fill_(-1)
        _, loss = model(x, y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = fw.nn.utils.clip_grad_norm_(model.parameters(), 0.4)
        optimizer.step()
        with fw.no_grad():
            for mean, p in zip(average, model.parameters(), strict=True):
                mean.mul_(0.9).add_(p.data, alpha=0.1)
        log.append(f"step {step} loss {loss:.9f} norm {norm.item():.9f}")
    model.eval()
    with fw.inference_mode():
        logits, _ = model(data[:, :3])
    assert next(model.parameters()).dtype == fw.float64 and logits.size() == (3, 1, 11)
    assert fw.allclose(logits, logits.clone().clamp(min=-1e9)) and not logits.requires_grad
    vector = fw.nn.utils.parameters_to_vector(average)
    return log, [f"{vector.abs().sum():.9f}", model.generate(data[:, :2], 4, 3).tolist()]


def test_a_script_gives_what_it_gives_in_pytorch():
    ours, theirs = define(ndl), define(torch)
    ours.load_state_dict(theirs.state_dict(), layout="torch")
    tokens = np.random.default_rng(0).integers(0, 11, (3, 7))
    assert train(ndl, ours, tokens) == train(torch, theirs, tokens)
    for name, value in theirs.state_dict().items():
        found = ours.state_dict(layout="torch")[name].numpy()
        np.testing.assert_allclose(found, value.numpy(), rtol=1e-7, atol=1e-9)
