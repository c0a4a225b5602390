"""Datasets and loaders."""

import sys

import numpy as np
import pytest

import needle as ndl
from needle.data import DataLoader, Dataset, DigitsDataset, NDArrayDataset


def dataset(n=10):
    return NDArrayDataset(np.arange(n * 2.0, dtype="float32").reshape(n, 2), np.arange(n))


def labels(loader):
    return [y.numpy().tolist() for _, y in loader]


def joined(batches):
    return [label for batch in batches for label in batch]


def test_items_and_batches():
    data = dataset()
    assert len(data) == 10
    x, y = data[3]
    assert x.tolist() == [6, 7] and y == 3
    with pytest.raises(ValueError, match=r"\[2, 3\]"):
        NDArrayDataset(np.ones(2), np.ones(3))


@pytest.mark.parametrize(("drop_last", "sizes"), [(False, [4, 4, 2]), (True, [4, 4])])
def test_batches_cover_the_dataset_in_order(drop_last, sizes, device):
    loader = DataLoader(dataset(), 4, drop_last=drop_last, device=device)
    batches = list(loader)
    assert len(loader) == len(batches)
    assert [len(y) for _, y in batches] == sizes
    assert joined(labels(loader)) == list(range(sum(sizes)))
    x, y = batches[0]
    assert isinstance(x, ndl.Tensor) and x.dtype == "float32" and not x.requires_grad
    assert x.device is device and y.dtype == "int64"


def test_shuffling():
    seeded = [DataLoader(dataset(50), 8, shuffle=True, seed=5) for _ in range(2)]
    first, second = labels(seeded[0]), labels(seeded[0])
    assert first != second  # every pass has its own order,
    assert labels(seeded[1]) == first  # which is the same in every run
    assert sorted(joined(first)) == list(range(50))
    np.random.seed(1)
    unseeded = DataLoader(dataset(50), 8, shuffle=True)
    a = labels(unseeded)
    np.random.seed(1)
    assert labels(unseeded) == a


def test_two_passes_at_once_do_not_disturb_each_other():
    loader = DataLoader(dataset(), 5)
    assert [(a[1].numpy()[0], b[1].numpy()[0]) for a in loader for b in loader] == [
        (0, 0),
        (0, 5),
        (5, 0),
        (5, 5),
    ]


def test_datasets_of_single_items():
    class Squares(Dataset):
        def __len__(self):
            return 5

        def __getitem__(self, i):
            return self.apply_transforms(np.float32(i * i)), i

    loader = DataLoader(Squares([lambda x: x + 1]), 2)
    assert [x.numpy().tolist() for x, _ in loader] == [[1, 2], [5, 10], [17]]


def test_bad_loaders_are_refused():
    for size in (0, -1):
        with pytest.raises(ValueError, match=str(size)):
            DataLoader(dataset(), size)
    with pytest.raises(NotImplementedError, match="__len__"):
        len(Dataset())


def test_empty_dataset():
    assert list(DataLoader(dataset(0), 4)) == []


def test_digits():
    pytest.importorskip("sklearn")
    train, test = DigitsDataset(train=True), DigitsDataset(train=False)
    assert len(train) + len(test) == 1797
    assert train.x.shape == (len(train), 64) and train.x.dtype == np.float32
    assert (train.x.min(), train.x.max()) == (0, 1)
    share = np.bincount(test.y) / (np.bincount(test.y) + np.bincount(train.y))
    assert (np.abs(share - 0.2) < 0.01).all()
    np.testing.assert_array_equal(DigitsDataset(train=True).y, train.y)
    seen = {x.tobytes() for x in train.x}
    assert sum(x.tobytes() in seen for x in test.x) == 0


def test_digits_without_sklearn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match="scikit-learn"):
        DigitsDataset()
