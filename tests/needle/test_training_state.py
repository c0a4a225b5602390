"""needle.Checkpoint: runs that were killed go on with the same bits."""

import itertools
import json
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import needle as ndl
from needle import data, nn, optim
from needle.optim import lr_scheduler

STEPS = 17  # with 5 batches in each pass over the data
PROGRAM = '''
import hashlib, json, os, random, signal, sys
import numpy as np
import needle as ndl
from needle import data, nn, optim, serialize

path, out, seed, kind, when, steps = sys.argv[1:4] + sys.argv[4:5] + [int(n) for n in sys.argv[5:]]


def die():
    os.kill(os.getpid(), signal.SIGKILL)


class Cut:
    """A file that is cut off after so many bytes."""

    def __init__(self, file):
        self.file, self.left = file, np.random.default_rng(int(seed)).integers(0, 25000)

    def write(self, raw):
        self.file.write(raw[: self.left])
        self.left -= len(raw)
        if self.left <= 0:
            self.file.flush()
            die()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        die()


ndl.manual_seed(int(seed))
np.random.seed(int(seed))
random.seed(int(seed))
noise = np.random.default_rng(int(seed))
rows = np.random.default_rng(3).normal(size=(19, 3)).astype("float32")
loader = data.DataLoader(
    data.NDArrayDataset(rows, rows.sum(1, keepdims=True)), batch_size=4, shuffle=True,
    seed=None if int(seed) % 2 else 5,
)
model = nn.Sequential(
    nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.3), nn.Linear(6, 1)
)
optimizer = optim.NAdam(model.named_parameters(), lr=0.05, weight_decay=0.01)
schedule = optim.lr_scheduler.ChainedScheduler([
    optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 4),
    optim.lr_scheduler.LinearLR(optimizer, 0.3, total_iters=9),
])
ema = optim.EMA(model, 0.9)
checkpoint = ndl.Checkpoint(model, optimizer, schedule, loader, noise, ema=ema)
progress = {"step": 0, "losses": []}
if os.path.exists(path):
    progress = checkpoint.load(path)
while progress["step"] < steps:
    for x, y in loader:
        if kind == "step" and progress["step"] == when:
            die()
        x = x + float(noise.normal()) * 0.1 + random.random() * 0.1 + np.random.rand() * 0.1
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        schedule.step()
        ema.update()
        progress["step"] += 1
        progress["losses"].append(loss.item())
        if progress["step"] % 3 == 0:
            if progress["step"] >= when and kind == "write":
                opened = os.fdopen
                serialize.os.fdopen = lambda *args: Cut(opened(*args))
            if progress["step"] >= when and kind == "rename":
                serialize.os.replace = lambda *args: die()
            checkpoint.save(path, **progress)
        if progress["step"] == steps:
            break
checkpoint.save(out, **progress)
'''


def run(tmp_path, name, seed, kind="", when=0):
    """Train in another process. Returns its exit status and what it ends with."""
    out = tmp_path / f"{name}.out"
    arguments = [tmp_path / f"{name}.safetensors", out, seed, kind, when, STEPS]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, arguments)], capture_output=True, text=True
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode, out.read_bytes() if out.exists() else None


@pytest.mark.parametrize(("seed", "kind"), [(0, "step"), (1, "write"), (2, "rename")])
def test_a_run_that_was_killed_ends_with_the_bits_of_one_that_was_not(tmp_path, seed, kind):
    """Killed at a drawn step, after a drawn number of bytes of a file, or before it is renamed."""
    when = int(np.random.default_rng(seed).integers(4, STEPS - 3))
    status, expected = run(tmp_path, "whole", seed)
    assert status == 0
    status, out = run(tmp_path, "broken", seed, kind, when)
    assert status == -signal.SIGKILL and out is None
    saved = ndl.Checkpoint.read(tmp_path / "broken.safetensors")["step"]
    assert saved == (when // 3 * 3 if kind == "step" else (when - 1) // 3 * 3)
    status, out = run(tmp_path, "broken", seed)
    assert status == 0 and out == expected
    state = json.loads(ndl.serialize.load_metadata(tmp_path / "whole.out")["training"])
    assert state["parts"].keys() >= {"model", "optimizer", "schedule", "loader", "rng", "ema"}


SCHEDULES = [
    lambda o: lr_scheduler.OneCycleLR(o, 0.1, 20, cycle_momentum=False),
    lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0, factor=0.5),
    lambda o: lr_scheduler.MultiplicativeLR(o, lambda n: 0.9 + n / 100),
    lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.5), lr_scheduler.ExponentialLR(o, 0.9)], [3]
    ),
]
OPTIMIZERS = "SGD Adam AdamW Adadelta Adagrad Adamax NAdam RAdam RMSprop Lion Adafactor Muon LBFGS"


def training(kind, schedule):
    """New parts of a run, and a function that takes steps and returns all that they change."""
    model = nn.Sequential(nn.Linear(3, 4, bias=False), nn.Dropout(0.4), nn.Linear(4, 2, bias=False))
    options = {"momentum": 0.9} if kind == "SGD" else {}
    optimizer = getattr(optim, kind)(model.parameters(), lr=0.05, **options)
    chosen = SCHEDULES[schedule](optimizer)
    ema = optim.EMA(model, 0.8)
    x = ndl.Tensor(np.random.default_rng(0).normal(size=(5, 3)).astype("float32"))

    def closure():
        optimizer.zero_grad()
        loss = (model(x) ** 2).sum()
        loss.backward()
        return loss

    def steps(count):
        losses = []
        for _ in range(count):
            losses.append(optimizer.step(closure).item())
            plateau = isinstance(chosen, lr_scheduler.ReduceLROnPlateau)
            chosen.step(*losses[-1:] if plateau else ())
            ema.update()
        tensors = [*model.parameters(), *ema.state_dict()["averages"]]
        return losses, optimizer.lr, [x.numpy().tobytes() for x in tensors], random.random()

    return ndl.Checkpoint(model, optimizer, schedule=chosen, ema=ema), steps


@pytest.mark.parametrize("kind", OPTIMIZERS.split())
def test_every_optimizer_and_schedule_goes_on_with_the_same_bits(tmp_path, kind):
    path, schedule = tmp_path / "x.safetensors", OPTIMIZERS.split().index(kind) % len(SCHEDULES)
    checkpoint, steps = training(kind, schedule)
    steps(4)
    checkpoint.save(path, name=kind)
    expected = steps(3)
    other, steps = training(kind, schedule)
    assert other.load(path) == {"name": kind}
    assert steps(3) == expected


LOADERS = {
    "shuffled": lambda rows, g: data.DataLoader(rows, 4, shuffle=True),
    "seeded": lambda rows, g: data.DataLoader(rows, 4, shuffle=True, seed=3),
    "generator": lambda rows, g: data.DataLoader(rows, 4, shuffle=True, generator=g),
    "sampler": lambda rows, g: data.DataLoader(
        rows, 4, sampler=data.WeightedRandomSampler(np.arange(1, 12), 13, generator=g)
    ),
    "threads": lambda rows, g: data.DataLoader(rows, 4, shuffle=True, workers=2),
    "processes": lambda rows, g: data.DataLoader(rows, 4, shuffle=True, num_workers=2),
}


@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.parametrize("bits", [np.random.PCG64, np.random.Philox])
def test_a_loader_goes_on_behind_its_last_batch(tmp_path, kind, bits):
    path, rows = tmp_path / "x.safetensors", data.NDArrayDataset(np.arange(11))

    def batches(loader):
        while True:
            for (x,) in loader:
                yield x.tolist()

    loader = LOADERS[kind](rows, np.random.Generator(bits(5)))
    whole = batches(loader)
    list(itertools.islice(whole, 5))
    ndl.Checkpoint(loader=loader).save(path)
    expected = list(itertools.islice(whole, 7))
    whole.close()
    other = LOADERS[kind](rows, np.random.Generator(bits(6)))
    ndl.Checkpoint(loader=other).load(path)
    assert list(itertools.islice(batches(other), 7)) == expected


def test_values_of_all_kinds_come_back(tmp_path):
    path = tmp_path / "x.safetensors"
    values = {
        "a": [1, 2.5, None, True, "text", float("inf"), 2**70],
        "b": (ndl.ones(2, dtype="float16"), {"x": np.arange(3), 5: np.uint64(7), None: ()}),
        "c": np.array([2**64 - 1], "uint64"),
        "b.0": ndl.zeros(1),
        "d": np.float32(0.1),
    }
    ndl.Checkpoint().save(path, **values)
    for found in (ndl.Checkpoint().load(path), ndl.Checkpoint.read(path)):
        assert found["a"] == values["a"] and found["d"] == float(np.float32(0.1))
        first, rest = found["b"]
        assert first.dtype == "float16" and first.tolist() == [1.0, 1.0] and rest[None] == ()
        assert rest["x"].dtype == "int64" and rest["x"].tolist() == [0, 1, 2] and rest[5] == 7
        assert found["c"].dtype == "uint64" and found["c"][0] == 2**64 - 1
        assert found["b.0"].tolist() == [0.0]


def test_what_does_not_fit_changes_nothing(tmp_path):
    path = tmp_path / "x.safetensors"
    model = nn.Linear(2, 1)
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(ndl.ones(3, 2)).sum().backward()
    optimizer.step()
    ema = optim.EMA(model)
    ndl.Checkpoint(model, optimizer, ema=ema).save(path)
    twin = nn.Linear(2, 1)
    averages = optim.EMA(twin)
    other = optim.Adam(twin.parameters(), lr=0.3)
    loader = data.DataLoader(data.NDArrayDataset(np.ones(3)))
    generator = ndl.rng.get_state()
    before = [x.numpy() for x in (*twin.parameters(), *averages.state_dict()["averages"])]
    for checkpoint, text in (
        (ndl.Checkpoint(twin, other, ema=averages), "optimizer does not fit: .*'momentum'"),
        (ndl.Checkpoint(ema=averages, model=twin, optimizer=other), "optimizer does not fit"),
        (ndl.Checkpoint(twin, ema=averages), "unexpected 'optimizer'"),
        (ndl.Checkpoint(twin, other, loader=loader, ema=ema), "missing 'loader'"),
    ):
        with pytest.raises(ValueError, match=text):
            checkpoint.load(path)
    after = [x.numpy() for x in (*twin.parameters(), *averages.state_dict()["averages"])]
    for a, b in zip(before, after, strict=True):
        np.testing.assert_array_equal(a, b)
    assert other.lr == 0.3 and not other.state and ndl.rng.get_state() == generator


def test_a_list_of_parts_changes_together(tmp_path):
    path = tmp_path / "x.safetensors"
    ndl.Checkpoint([nn.Linear(2, 1), nn.Linear(2, 1)]).save(path)
    models = [nn.Linear(2, 1), nn.Linear(3, 1)]
    before = models[0].weight.tolist()
    with pytest.raises(ValueError, match="model does not fit"):
        ndl.Checkpoint(models).load(path)
    assert models[0].weight.tolist() == before


def test_other_files_and_parts_are_refused_by_name(tmp_path):
    path = tmp_path / "x.safetensors"
    ndl.save(path, nn.Linear(2, 1))
    with pytest.raises(ValueError, match=r"x\.safetensors is not a checkpoint but a file of w"):
        ndl.Checkpoint(nn.Linear(2, 1)).load(path)
    with pytest.raises(OSError):
        ndl.Checkpoint.read(tmp_path / "none")
    whole = path.read_bytes()
    for bad in (3, [nn.Linear(2, 1), "x"], nn.Linear):
        with pytest.raises(TypeError, match=r"Checkpoint: rng(\[1\])? is a (int|str|type)"):
            ndl.Checkpoint(rng=bad)
    with pytest.raises(TypeError, match=r"values\.x\.0 is a set"):
        ndl.Checkpoint().save(path, x=[{1}])
    assert path.read_bytes() == whole and [*Path(tmp_path).iterdir()] == [path]
