"""DataLoader, samplers, datasets and collation beside PyTorch's."""

import collections
import itertools
import json
import warnings

import numpy as np
import pytest

import needle as ndl
from needle import data, rng

torch = pytest.importorskip("torch")
torch_data = torch.utils.data

pytestmark = pytest.mark.peer

Point = collections.namedtuple("Point", "x y")
DTYPES = ("float32", "float64", "int64", "int32", "uint8", "bool", "float16")


def plain(value):
    """A batch with (dtype, values) in the place of tensors."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype).removeprefix("torch."), value.tolist()
    if isinstance(value, ndl.Tensor):
        assert not value.requires_grad
        return value.dtype, value.tolist()
    if isinstance(value, dict):
        return type(value), {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, collections.UserList)):
        return type(value), [plain(item) for item in value]
    return value


def leaf_of(draw):
    """A function that makes values of one kind."""
    shape, dtype = tuple(draw.integers(0, 4, draw.integers(0, 3))), draw.choice(DTYPES)
    return [
        lambda: draw.integers(0, 2, shape).astype(dtype),
        lambda: np.dtype(dtype).type(draw.integers(0, 2)),
        lambda: float(draw.random()),
        lambda: int(draw.integers(-9, 9)),
        lambda: bool(draw.integers(2)),
        lambda: "text",
        lambda: b"bytes",
    ][draw.integers(7)]


def maker_of(draw, depth=0):
    """A function that makes samples of one drawn structure."""
    if depth == 3 or draw.random() < 0.3:
        return leaf_of(draw)
    parts = [maker_of(draw, depth + 1) for _ in range(draw.integers(1, 4))]
    two = (parts * 2)[:2]
    return [
        lambda: tuple(part() for part in parts),
        lambda: [part() for part in parts],
        lambda: {f"k{i}": part() for i, part in enumerate(parts)},
        lambda: collections.OrderedDict((i, part()) for i, part in enumerate(parts)),
        lambda: collections.UserList(part() for part in parts),
        lambda: Point(*(part() for part in two)),
    ][draw.integers(6)]


@pytest.mark.parametrize("seed", range(40))
def test_collate_and_convert_are_pytorchs(seed):
    draw = np.random.default_rng(seed)
    make = maker_of(draw)
    batch = [make() for _ in range(draw.integers(1, 4))]
    assert plain(data.default_collate(batch)) == plain(torch_data.default_collate(batch))
    assert plain(data.default_convert(batch[0])) == plain(torch_data.default_convert(batch[0]))


@pytest.mark.parametrize(
    "batch",
    [
        [None, None],
        [object()],
        [np.array(["a"])],
        [np.array([None])],
        [np.ones(2), np.ones(3)],
        [np.ones((2, 1)), np.ones((1, 2))],
        [[1, 2], [3]],
        [(1, 2), (3,)],
        [{"a": None}],
        [{"a": 1}, {"b": 1}],
        [],
    ],
)
def test_what_does_not_collate_is_pytorchs_error(batch):
    with pytest.raises(Exception) as theirs:
        torch_data.default_collate(batch)
    with pytest.raises(type(theirs.value)) as ours:
        data.default_collate(batch)
    if theirs.type in (TypeError, RuntimeError):
        assert "default_collate: " in str(ours.value)
        text = str(theirs.value).removeprefix("default_collate: ").replace("torch.", "")
        assert text.split(";")[0] in str(ours.value)


def test_tensors_collate():
    for dtype in ("float32", "bfloat16", "int64"):
        rows = [ndl.Tensor([i, i + 1], dtype=dtype) for i in range(3)]
        batch = data.default_collate(rows)
        assert batch.dtype == dtype and batch.tolist() == [[0, 1], [1, 2], [2, 3]]
        assert not batch.requires_grad


@pytest.mark.parametrize("workers", [0, 1])
def test_arrays_of_bfloat16_collate(workers):
    values = ndl.Tensor([0, 1, 2], dtype="bfloat16").numpy()
    for dataset in (data.NDArrayDataset(values, values), [(x, x) for x in values]):
        first, second = data.DataLoader(dataset, 2, num_workers=workers)
        for part in (*first, *second):
            assert part.dtype == "bfloat16"
        assert first[1].tolist() == [0, 1] and second[0].tolist() == [2]
    assert data.default_convert(values[1]).dtype == "bfloat16"


def test_tensors_of_other_libraries_collate():
    rows = [(torch.full((2,), i, dtype=torch.float64), torch.tensor(i)) for i in range(4)]
    for workers in (0, 1):
        batches = list(data.DataLoader(rows, 2, num_workers=workers))
        assert [plain(x) for x in batches] == [
            plain(x) for x in torch_data.DataLoader(rows, 2, num_workers=0)
        ]
    assert plain(data.default_convert(rows[0])) == plain(torch_data.default_convert(rows[0]))


class Items(data.Dataset):
    """A dataset for both libraries: dicts of different kinds of values."""

    def __init__(self, count=17):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        return {"x": np.full(3, i, np.float32), "i": i, "pair": (i / 2, f"item {i}")}


class Stream(data.IterableDataset):
    """Numbers up to `count`, of which each worker has its part."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        info = data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(first, self.count, step))


class TorchStream(torch_data.IterableDataset):
    def __init__(self, count):
        self.count = count

    def __iter__(self):
        info = torch_data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(first, self.count, step))


def first_column(batch):
    return [item["i"] for item in batch]


CASES = [
    {"batch_size": size, "drop_last": drop, "num_workers": workers}
    for size, drop, workers in itertools.product((1, 4, 17, 20), (False, True), (0, 2))
]
CASES += [
    {"batch_size": None},
    {"batch_size": None, "num_workers": 1},
    {"sampler": [3, 1, 4, 1, 5], "batch_size": 2},
    {"sampler": [3, 1, 4, 1, 5], "batch_size": None},
    {"batch_sampler": [[1, 2], [], [5], [0, 3, 3]], "collate_fn": first_column},
    {"batch_sampler": [[1, 2], [5], [0, 3, 3]], "num_workers": 3},
    {"collate_fn": first_column, "batch_size": 3, "num_workers": 2, "prefetch_factor": 1},
    {"batch_size": 3, "num_workers": 2, "persistent_workers": True},
]


@pytest.mark.parametrize("options", CASES, ids=range(len(CASES)))
def test_batches_are_pytorchs(options):
    ours = data.DataLoader(Items(), **options)
    # PyTorch's processes give what its own process does, which costs less.
    alone = {k: v for k, v in options.items() if k not in ("num_workers", "prefetch_factor")}
    theirs = torch_data.DataLoader(Items(), **{**alone, "persistent_workers": False})
    expected = [plain(batch) for batch in theirs]
    for _ in range(2):
        assert [plain(batch) for batch in ours] == expected
    assert len(ours) == len(theirs) == len(expected)


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("size", [None, 1, 4])
def test_streams_are_pytorchs(workers, size):
    for drop in (False, True) if size else (False,):
        options = {"batch_size": size, "drop_last": drop, "num_workers": workers}
        ours = [plain(x) for x in data.DataLoader(Stream(21), **options)]
        assert ours == [plain(x) for x in torch_data.DataLoader(TorchStream(21), **options)]
    with pytest.raises(TypeError, match="__len__"):
        len(data.DataLoader(Stream(21)))


@pytest.mark.parametrize(
    "options",
    [
        {"sampler": [0], "shuffle": True},
        {"batch_sampler": [[0]], "batch_size": 2},
        {"batch_sampler": [[0]], "shuffle": True},
        {"batch_sampler": [[0]], "sampler": [0]},
        {"batch_sampler": [[0]], "drop_last": True},
        {"batch_size": None, "drop_last": True},
        {"batch_size": 0},
        {"num_workers": -1},
        {"num_workers": 1, "timeout": -1},
        {"prefetch_factor": 2},
        {"persistent_workers": True},
        {"multiprocessing_context": "fork"},
        {"num_workers": 1, "multiprocessing_context": "thread"},
    ],
    ids=str,
)
def test_what_excludes_each_other_is_refused(options):
    with pytest.raises(ValueError):
        torch_data.DataLoader(Items(), **options)
    with pytest.raises(ValueError, match=r"^DataLoader: .*") as error:
        data.DataLoader(Items(), **options)
    assert any(name in str(error.value) for name in options)


@pytest.mark.parametrize(
    "options", [{"shuffle": True}, {"sampler": [0]}, {"batch_sampler": [[0]]}, {"workers": 1}]
)
def test_streams_have_their_own_order(options):
    with pytest.raises(ValueError, match="IterableDataset"):
        data.DataLoader(Stream(3), **options)


def test_more_refusals():
    for options, text in (
        ({"seed": 1, "generator": np.random.default_rng()}, "seed or a generator"),
        ({"num_workers": 1, "workers": 1}, "processes"),
    ):
        with pytest.raises(ValueError, match=text):
            data.DataLoader(Items(), **options)
    for options in ({"generator": 5}, {"num_workers": 1, "multiprocessing_context": 5}):
        with pytest.raises(TypeError, match=f"DataLoader: {list(options)[-1]} is a int"):
            data.DataLoader(Items(), **options)


@pytest.mark.parametrize("seed", range(10))
def test_samplers(seed):
    draw = np.random.default_rng(seed)
    count, size = (int(n) for n in draw.integers(1, 30, 2))
    for drop in (False, True):
        ours, theirs = (m.BatchSampler(range(count), size, drop) for m in (data, torch_data))
        assert list(ours) == list(theirs) and len(ours) == len(theirs)
    wanted = int(draw.integers(1, 70))
    for replacement in (False, True):
        given = {"replacement": replacement, "num_samples": wanted}
        sampler = data.RandomSampler(range(count), **given, generator=np.random.default_rng(seed))
        drawn = list(sampler)
        assert len(drawn) == len(sampler) == wanted
        assert set(map(type, drawn)) == {int} and set(drawn) <= set(range(count))
        if not replacement:
            times = np.bincount(drawn, minlength=count)
            assert times.max() - times.min() <= 1
    letters = [chr(97 + i) for i in range(count)]
    assert sorted(data.SubsetRandomSampler(letters)) == letters
    assert list(data.SequentialSampler(letters)) == list(range(count))


@pytest.mark.parametrize("replacement", [False, True])
def test_weighted_samples_have_multinomials_distribution(replacement):
    weights = np.array([0.0, 1.0, 2.0, 0.0, 5.0, 0.5])
    generator, counts = np.random.default_rng(1), np.zeros((2, len(weights)))
    torch.manual_seed(1)
    passes = 3000
    for _ in range(passes):
        sampler = data.WeightedRandomSampler(weights, 2, replacement, generator=generator)
        others = torch.multinomial(torch.tensor(weights), 2, replacement)
        for row, drawn in zip(counts, (list(sampler), others), strict=True):
            assert len(set(np.asarray(drawn).tolist())) == 2 or replacement
            row += np.bincount(drawn, minlength=len(weights))
    ours, theirs = counts / passes
    assert (ours[weights == 0] == 0).all()
    np.testing.assert_allclose(ours, theirs, atol=6 * np.sqrt(2 / passes))


@pytest.mark.parametrize(
    ("weights", "samples", "replacement"),
    [
        ([1.0, -1.0], 1, True),
        ([np.nan], 1, True),
        ([0.0], 1, True),
        ([1.0, 0.0], 2, False),
        ([[1.0]], 1, True),
        ([1.0], 0, True),
        ([1.0], 1.5, True),
        ([1.0], 1, 5),
    ],
)
def test_weights_that_cannot_be_drawn_from(weights, samples, replacement):
    with pytest.raises((ValueError, TypeError), match=r"^WeightedRandomSampler: "):
        data.WeightedRandomSampler(weights, samples, replacement)


@pytest.mark.parametrize("seed", range(12))
def test_splits_have_pytorchs_sizes(seed):
    draw = np.random.default_rng(seed)
    total, parts = int(draw.integers(10, 50)), int(draw.integers(1, 5))
    shares = draw.dirichlet(np.ones(parts)).round(2)
    shares[0] = 1 - shares[1:].sum()
    cuts = np.sort(draw.integers(0, total + 1, parts - 1))
    sizes = np.diff([0, *cuts, total])
    if sizes.sum() == 1:
        return
    for lengths in (shares.tolist(), sizes.tolist()):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an empty part
            ours = data.random_split(range(total), lengths, np.random.default_rng(seed))
            theirs = torch_data.random_split(range(total), lengths)
        assert [len(part) for part in ours] == [len(part) for part in theirs]
        assert sorted(i for part in ours for i in part.indices) == list(range(total))
    with pytest.raises(ValueError, match="do not sum"):
        data.random_split(range(total), [total, 1])
    with pytest.raises(ValueError, match="random_split: lengths -1"):
        data.random_split(range(total), [-1, total + 1])
    with pytest.raises(TypeError, match=r"random_split: lengths 2\.5"):
        data.random_split(range(total), [2.5, total - 2.5])


def test_a_split_without_items_warns():
    with pytest.warns(UserWarning, match="length of split 1 is 0"):
        data.random_split(range(1), [0.5, 0.5])


def test_datasets_of_datasets():
    one, two = [10, 11, 12], [20, 21]
    ours, theirs = data.ConcatDataset([one, two, []]), torch_data.ConcatDataset([one, two, []])
    assert len(ours) == len(theirs) == 5
    for i in range(-5, 5):
        assert ours[i] == theirs[i]
    for i in (5, -6):
        with pytest.raises(IndexError, match="5 items"):
            ours[i]
    assert len(Items(3) + Items(4)) == 7
    with pytest.raises(ValueError, match="empty"):
        data.ConcatDataset([])
    with pytest.raises(TypeError, match="IterableDataset"):
        data.ConcatDataset([Stream(3)])
    rows = data.TensorDataset(ndl.arange(6), ndl.rand(6, 2))
    part = data.Subset(rows, [4, 2, 0])
    (labels, values), *_ = data.DataLoader(part, 3)
    assert labels.tolist() == [4, 2, 0] and values.shape == (3, 2) and not values.requires_grad
    assert [x.tolist() for x in part[1]] == [x[2].tolist() for x in rows.tensors]
    for bad, error in (((np.ones(2),), TypeError), ((ndl.ones(2), ndl.ones(3)), ValueError)):
        with pytest.raises(error, match="TensorDataset: "):
            data.TensorDataset(*bad)


def test_an_item_that_is_redefined_is_what_a_batch_holds():
    class Doubled(data.NDArrayDataset):
        def __getitem__(self, i):
            return [2 * x for x in super().__getitem__(i)]

    for dataset in (Doubled(np.arange(4)), data.Subset(Doubled(np.arange(4)), range(4))):
        assert [x.tolist() for (x,) in data.DataLoader(dataset, 2)] == [[0, 2], [4, 6]]


def loaders():
    """Loaders whose order is part of their state."""
    yield lambda: data.DataLoader(Items(), 3, shuffle=True, generator=np.random.default_rng(1))
    for kind in (np.random.MT19937, np.random.Philox):
        yield lambda kind=kind: data.DataLoader(
            Items(),
            3,
            sampler=data.RandomSampler(range(17), generator=np.random.Generator(kind(1))),
            generator=np.random.default_rng(2),
        )
    yield lambda: data.DataLoader(
        Items(), batch_sampler=data.BatchSampler(data.RandomSampler(range(17)), 4, True), seed=3
    )
    yield lambda: data.DataLoader(
        Items(), 3, sampler=data.WeightedRandomSampler(np.arange(17.0), 9), seed=3, num_workers=1
    )
    yield lambda: data.DataLoader(Stream(11), 3, seed=1)
    yield lambda: data.DataLoader(Stream(11), 2, num_workers=2, persistent_workers=True)


@pytest.mark.parametrize("number", range(7))
def test_a_loader_goes_on_where_another_stopped(number, monkeypatch):
    monkeypatch.setattr(rng, "_generator", None)
    make = list(loaders())[number]
    loader = make()
    whole = [[plain(batch) for batch in loader] for _ in range(3)]
    length = len(whole[0])
    assert whole[0] != whole[1] or isinstance(loader.dataset, Stream)
    for done, taken in itertools.product(range(2), range(1, length)):
        stopped = make()
        for _ in range(done):
            list(stopped)
        for _ in itertools.islice(batches := iter(stopped), taken):
            pass
        state = json.loads(json.dumps(stopped.state_dict()))
        batches.close()
        for other in (make(), stopped):
            other.load_state_dict(state)
            rest = [[plain(batch) for batch in other] for _ in range(3 - done)]
            assert rest == [whole[done][taken:], *whole[done + 1 :]]


def test_a_state_of_other_generators_is_refused():
    states = [make().state_dict() for make in loaders()]
    with pytest.raises(ValueError, match="generators"):
        data.DataLoader(Items()).load_state_dict(states[0])
    with pytest.raises(ValueError, match="MT19937"):
        next(loaders())().load_state_dict(states[1])
