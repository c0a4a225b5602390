"""A small model learns its task."""

import time

import numpy as np
import pytest

import needle as ndl
from needle import data, nn, optim


def test_an_mlp_learns_the_digits():
    pytest.importorskip("sklearn")
    np.random.seed(0)
    train, test = data.DigitsDataset(train=True), data.DigitsDataset(train=False)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer, loss_fn = optim.Adam(model.parameters(), lr=2e-3), nn.SoftmaxLoss()
    start = time.perf_counter()
    for x, y in (b for e in range(25) for b in data.DataLoader(train, 64, shuffle=True, seed=e)):
        optimizer.reset_grad()
        loss_fn(model(x), y).backward()
        optimizer.step()
    seconds = time.perf_counter() - start
    model.eval()
    with ndl.no_grad():
        predicted = model(ndl.Tensor(test.x)).numpy().argmax(1)
    assert (predicted == test.y).mean() >= 0.96
    assert seconds < 60  # a few seconds on an idle core


@pytest.mark.parametrize("seed", [ndl.manual_seed, np.random.seed])
def test_training_is_the_same_for_the_same_seed(seed, device, monkeypatch):
    from needle import rng

    monkeypatch.setattr(rng, "_generator", None)
    results = []
    for _ in range(2):
        seed(7)
        model = nn.Sequential(
            nn.Linear(6, 8, device=device),
            nn.BatchNorm1d(8, device=device),
            nn.ReLU(),
            nn.Dropout(0.3),
            nn.Residual(nn.Linear(8, 8, device=device)),
            nn.LayerNorm1d(8, device=device),
            nn.Linear(8, 3, device=device),
        )
        optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
        noise = np.random.default_rng(0)
        losses = []
        for _ in range(30):
            x = noise.normal(size=(16, 6)).astype("float32")
            y = (x[:, 0] > 0).astype("int32") + (x[:, 1] > 0)
            optimizer.reset_grad()
            loss = nn.SoftmaxLoss()(
                model(ndl.Tensor(x, device=device)), ndl.Tensor(y, device=device)
            )
            loss.backward()
            optimizer.clip_grad_norm(1.0)
            optimizer.step()
            losses.append(loss.item())
        results.append(losses)
    assert results[0] == results[1]
    assert np.mean(results[0][-5:]) < np.mean(results[0][:5])
