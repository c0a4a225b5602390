"""A training script for one process, which three lines make one for many: see `train`.

`distributed_training.py WHAT FOLDER` runs a part of it, under mpiexec or without.
"""

import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

import needle as ndl
from needle import nn
from needle.trace.tracer import trace

# 23 rows in batches of 7: 2 and 3 divide none, and the last batch has fewer rows than 3 ranks.
ROWS, BATCH, EPOCHS, SAVED = 23, 7, 3, 6
RUNS = {
    "numpy": {"seed": None},
    "norms": {"norm": nn.BatchNorm1d, "optimizer": ndl.optim.SGD},
    "sum": {"reduction": "sum"},
    "resumed": {},
}


class Model(nn.Module):
    """`rare` has gradients only from rows of class 3, `unused` never."""

    def __init__(self, norm):
        super().__init__()
        where = {"dtype": "float64"}
        self.first = nn.Linear(6, 16, bias=False, **where)
        self.norm = norm(16, **where)
        self.dropout = nn.Dropout(0.3)
        self.rare = nn.Linear(6, 4, **where)
        self.unused = nn.Linear(2, 2, **where)
        self.last = nn.Linear(16, 4, **where)

    def forward(self, x, y):
        x = x + 0.1 * ndl.randn_like(x) + 0.01 * ndl.randint(0, 5, (len(x), 1)) + ndl.rand(())
        out = self.last(self.dropout(self.norm(self.first(x)).relu()))
        is_rare = y == 3
        if is_rare.any():
            out = out + self.rare(x) * is_rare.reshape((len(x), 1))
        return out


def dataset():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, ROWS)
    return ndl.data.NDArrayDataset(rng.normal(size=(ROWS, 6)), labels)


def train(
    path,
    group=None,
    *,
    norm=nn.LayerNorm,
    optimizer=ndl.optim.AdamW,
    seed=5,
    reduction="mean",
    kill=False,
):
    """Train from the start, or from the checkpoint `path` if it is there. Returns all numbers."""
    with ndl.rng.using(np.random.default_rng(1)):
        model = Model(norm)
    np.random.seed(1)
    if group is not None and group.rank:
        for p in model.parameters():
            p.data = p.detach() * 0  # rank 0's values come instead
    if seed is not None:
        ndl.manual_seed(seed)
    loader = ndl.data.DataLoader(dataset(), BATCH, shuffle=True)
    if group is not None:
        options = {"reduction": reduction, "sync_batch_norm": True, "bucket_cap_mb": 0.0005}
        model = group.data_parallel(model, **options)
        loader = group.split(loader)
    opt = optimizer(model.parameters(), lr=0.01)
    checkpoint = ndl.Checkpoint(model, opt, loader=loader)
    losses = checkpoint.load(path)["losses"] if path.exists() else []
    while len(losses) < EPOCHS * -(-ROWS // BATCH):
        for x, y in loader:
            opt.zero_grad()
            loss = nn.functional.cross_entropy(model(x, y), y, reduction=reduction)
            loss.backward()
            ndl.optim.clip_grad_norm(opt.params, 0.7)
            if kill and len(losses) == SAVED + 1 and group.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            opt.step()
            if reduction == "sum":
                loss = loss / len(x)
            losses.append(loss.item() if group is None else group.mean(loss))
            if len(losses) == SAVED and (group is None or group.rank == 0):
                checkpoint.save(path, losses=losses)
    assert model.unused.weight.grad is None and ndl.rng.rows is None
    return {"losses": np.array(losses), **{k: v.numpy() for k, v in model.state_dict().items()}}


def train_all(folder, group=None):
    """{"run name": numbers} of all RUNS."""
    found = {}
    for run, options in RUNS.items():
        numbers = train(folder / f"{run}.safetensors", group, **options)
        found |= {f"{run} {name}": value for name, value in numbers.items()}
    return found


def check_overlap(group):
    """The sums of the last layer's gradients begin before the first layer's gradients are there."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    group.data_parallel(model, bucket_cap_mb=0.0)
    sums = model[0].weight.node.attached.hooks[0].fn.func.__self__
    assert len(sums.buckets) == 4
    begun = []
    model[0].weight.register_hook(lambda gradient: begun.append(len(sums.requests)))
    for _ in range(2):  # gradients add up, as in one process
        model(ndl.ones(2, 4) * (group.rank + 1)).sum().backward()
    assert begun == [4, 4] or begun == [3, 3], begun
    whole = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    whole.load_state_dict(model.state_dict())
    for _ in range(2):
        x = ndl.tensor(np.repeat(np.arange(group.size) + 1.0, 2)[:, None] * np.ones((1, 4)))
        (whole(x.float()).sum() / group.size).backward()
    for one, other in zip(model.parameters(), whole.parameters(), strict=True):
        np.testing.assert_allclose(one.grad.numpy(), other.grad.numpy(), rtol=1e-5)


def check_batch_norm(group):
    """It takes the statistics of the rank's rows, or with sync_batch_norm those of all."""
    x = ndl.tensor([[0.0], [2.0]]) + 10.0 * group.rank
    for whole, expected in ((False, 1.0 + 10.0 * group.rank), (True, 1.0 + 5.0 * (group.size - 1))):
        layer = nn.BatchNorm1d(1, momentum=1.0)
        group.data_parallel(layer, sync_batch_norm=whole)
        layer(x)
        np.testing.assert_allclose(layer.running_mean.numpy(), [expected], rtol=1e-6)


def check_refusals(group):
    """Each is an error on every rank, by name, and none leaves a rank waiting."""
    rank = group.rank
    wrong = nn.Linear(4, 3 if rank else 2)
    with pytest.raises(ValueError, match=r"'weight' is float32\[4, 2\].*on rank 0, and .*4, 3\]"):
        group.data_parallel(wrong)
    wrong = nn.Sequential(nn.Linear(4, 2)) if rank else nn.Linear(4, 2)
    with pytest.raises(ValueError, match=r"'weight' is .* none of that name on rank 1"):
        group.data_parallel(wrong)
    with pytest.raises(ValueError, match="'total' is neither 'mean' nor 'sum'"):
        group.data_parallel(nn.Linear(2, 2), reduction="total")
    with pytest.raises(ValueError, match="no batches of numbered items"):
        group.split(ndl.data.DataLoader(dataset(), batch_size=None))
    ndl.manual_seed(0)
    model, other = (group.data_parallel(nn.Linear(2, 2)) for _ in range(2))
    x = ndl.ones(1, 2)
    with pytest.raises(RuntimeError, match="create_graph=True records no graph"):
        model(x).sum().backward(create_graph=True)
    (inner,) = ndl.autograd.grad(model(x).sum(), [model.weight], create_graph=True)
    assert inner.shape == (2, 2)  # sums nothing
    with pytest.raises(ndl.TraceError, match="a data_parallel model"):
        trace(lambda x: model(x).sum().backward(), x)
    batches = group.split(ndl.data.DataLoader(dataset(), BATCH))
    with pytest.raises(RuntimeError, match=r"rank 0 .* at batch 2 .*, but rank 1 .* at batch 3 "):
        for number, _ in enumerate(batches):
            if number != 1 or not rank:
                other(x).sum().backward()
    with pytest.raises(RuntimeError, match="rank 0 takes a mean, but rank 1 is at a barrier"):
        group.barrier() if rank else group.mean(1.0)
    if rank:
        ndl.rand(3)
    with pytest.raises(RuntimeError, match="drawn different random numbers"):
        model(x).sum().backward()
    with pytest.raises(RuntimeError, match=r"the last backward\(\) of .* ended with an error"):
        model(x).sum().backward()


def end_early(group):
    """Rank 1 does a step less than rank 0, which says so, and ends with an error."""
    ndl.manual_seed(0)
    model = group.data_parallel(nn.Linear(2, 2))
    for _ in range(3 - group.rank):
        model(ndl.ones(1, 2)).sum().backward()


if __name__ == "__main__":
    what, folder, ranks = sys.argv[1], Path(sys.argv[2]), ndl.distributed.init()
    if what == "train":
        results = train_all(folder, ranks)
        if ranks.rank == 0:
            np.savez(folder / f"{ranks.size}.npz", **results)
    elif what == "killed":
        train(folder / "killed.safetensors", ranks, kill=True)
    else:
        check_overlap(ranks)
        check_batch_norm(ranks)
        check_refusals(ranks)
        sys.stdout.write("checked\n" * (ranks.rank == 0))
        end_early(ranks)
