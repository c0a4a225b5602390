"""Transforms, workers, positions: any number of workers and a resumed run give equal samples."""

import itertools
import json
import threading
import time

import numpy as np
import pytest

import needle as ndl
from needle import rng
from needle.data import (
    DataLoader,
    Dataset,
    NDArrayDataset,
    RandomCrop,
    RandomFlipHorizontal,
    Transform,
)


@pytest.fixture(autouse=True)
def unseeded(monkeypatch):
    """Keep manual_seed in one test from affecting the next."""
    monkeypatch.setattr(rng, "_generator", None)


@pytest.fixture
def image():
    return np.random.default_rng(0).random((6, 5, 3)).astype(np.float32) + 1


def test_flips(image):
    assert (RandomFlipHorizontal(0)(image) == image).all()
    assert (RandomFlipHorizontal(1)(image) == image[:, ::-1]).all()
    ndl.manual_seed(0)
    flip = RandomFlipHorizontal(0.3)
    share = np.mean([(flip(image) != image).any() for _ in range(500)])
    assert abs(share - 0.3) < 0.07
    for p in (-0.1, 1.1):
        with pytest.raises(ValueError, match="p"):
            RandomFlipHorizontal(p)


def test_crops(image):
    ndl.manual_seed(0)
    crop = RandomCrop(2)
    padded = np.pad(image, [(2, 2), (2, 2), (0, 0)])
    windows = {
        padded[i : i + 6, j : j + 5].tobytes(): (i, j)
        for i, j in itertools.product(range(5), repeat=2)
    }
    seen = {windows[crop(image).tobytes()] for _ in range(500)}
    assert len(seen) == 25  # every shift of up to 2 pixels, and no other
    assert (RandomCrop(0)(image) == image).all()
    assert RandomCrop(1)(image[..., 0]).shape == (6, 5)
    with pytest.raises(ValueError, match="-1"):
        RandomCrop(-1)
    with pytest.raises(NotImplementedError, match="__call__"):
        Transform()(image)


def test_numpys_seed_steers_as_in_the_course(image):
    np.random.seed(3)
    down, right = np.random.randint(low=-3, high=4, size=2)
    flip = np.random.rand() < 0.5
    padded = np.pad(image, [(3, 3), (3, 3), (0, 0)])
    expected = padded[3 + down : 9 + down, 3 + right : 8 + right]
    np.random.seed(3)
    for transform in (RandomCrop(3), RandomFlipHorizontal(0.5)):
        image = transform(image)
    np.testing.assert_array_equal(image, expected[:, ::-1] if flip else expected)


class Pictures(Dataset):
    """Items take different times, so that threads overtake one another."""

    def __init__(self, n=23):
        super().__init__([RandomCrop(2), RandomFlipHorizontal()])
        self.images = np.random.default_rng(1).random((n, 4, 4, 1)).astype(np.float32)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        time.sleep((i * 7 % 5) / 2000)
        return self.apply_transforms(self.images[i]), i


def passes(loader, count=2):
    return [[(x.numpy().tobytes(), *y.numpy()) for x, y in loader] for _ in range(count)]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("seed", [None, 5])
def test_workers_change_nothing(shuffle, seed):
    results = []
    for workers in (0, 1, 4):
        ndl.manual_seed(2)
        loader = DataLoader(Pictures(), 4, shuffle=shuffle, seed=seed, workers=workers)
        results.append(passes(loader))
    assert results[0] == results[1] == results[2]
    first, second = results[0]
    assert first != second  # each pass draws new numbers
    ndl.manual_seed(3)
    again = passes(DataLoader(Pictures(), 4, shuffle=shuffle, seed=seed))
    assert (again == results[0]) == (seed is not None)


@pytest.mark.parametrize("seed", [None, 0, 5, 2**40])
def test_the_order_and_what_is_drawn_within_batches_are_independent(seed):
    """A permutation that a batch draws is not the pass's order, nor another batch's."""

    class Shuffled(NDArrayDataset):
        def batch(self, chosen):
            drawn.append(rng.permutation(20).tolist())
            return super().batch(chosen)

    drawn = []
    loader = DataLoader(Shuffled(np.arange(20)), 5, shuffle=True, seed=seed)
    for _ in range(3):
        drawn.append([n for (x,) in loader for n in x.numpy().tolist()])
    assert len(drawn) == len(set(map(tuple, drawn))) == 3 * (4 + 1)


def test_workers_report_errors_in_their_place_and_end():
    class Broken(Pictures):
        def __getitem__(self, i):
            if i == 9:
                raise RuntimeError("item 9 is broken")
            return super().__getitem__(i)

    def threads():
        return [t for t in threading.enumerate() if t.name.startswith("needle-data")]

    batches = iter(DataLoader(Broken(), 4, workers=3))
    assert [next(batches)[1].numpy()[0] for _ in range(2)] == [0, 4]
    with pytest.raises(RuntimeError, match="item 9"):
        next(batches)
    assert not threads()
    early = iter(DataLoader(Pictures(), 4, workers=3))
    next(early)
    assert threads()
    early.close()
    assert not threads()
    with pytest.raises(ValueError, match="workers -1"):
        DataLoader(Pictures(), 4, workers=-1)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("seed", [None, 5])
def test_a_loader_goes_on_where_another_stopped(workers, seed):
    def make():
        return DataLoader(Pictures(), 4, shuffle=True, seed=seed, workers=workers)

    ndl.manual_seed(1)
    whole = [batch for one in passes(make(), 3) for batch in one]
    for stop in range(len(whole) + 1):
        ndl.manual_seed(1)
        loader, taken = make(), []
        while len(taken) < stop:
            batches = iter(loader)
            for x, y in itertools.islice(batches, stop - len(taken)):
                taken.append((x.numpy().tobytes(), *y.numpy()))
            batches.close()
        saved = json.dumps([loader.state_dict(), rng.get_state()])
        ndl.manual_seed(99)
        other = make()
        position, generator = json.loads(saved)
        other.load_state_dict(position)
        rng.set_state(generator)
        assert other.state_dict() == position
        while len(taken) < len(whole):
            taken += passes(other, 1)[0]
        assert taken == whole


def test_positions_that_do_not_fit():
    loader = DataLoader(NDArrayDataset(np.arange(10)), 5, seed=1)
    for bad in ({}, {"epoch": 1, "pass": {"seed": 3}}, {"epoch": "x", "pass": None}):
        with pytest.raises(ValueError, match="the state is not a loader's"):
            loader.load_state_dict(bad)
    with pytest.raises(ValueError, match="3 batches"):
        loader.load_state_dict({"epoch": 1, "pass": {"seed": [1, 0], "batches": 3}})


@pytest.mark.parametrize("seed", [ndl.manual_seed, np.random.seed])
def test_the_generator_goes_on_where_it_was(seed):
    seed(4)
    ndl.init.randn(3)
    saved = json.loads(json.dumps(rng.get_state()))
    first = [ndl.init.randn(5).numpy().tolist(), rng.permutation(9).tolist()]
    ndl.manual_seed(8)
    rng.set_state(saved)
    assert [ndl.init.randn(5).numpy().tolist(), rng.permutation(9).tolist()] == first
    for bad in ({}, {"kind": "x", "state": {}}, {"kind": "needle", "state": {"a": 1}}):
        with pytest.raises(ValueError, match="set_state"):
            rng.set_state(bad)
