"""Readers of MNIST, CIFAR-10 and text files, on small and on damaged files of the real formats."""

import gzip
import pickle
import struct

import numpy as np
import pytest

import needle as ndl
from needle.data import (
    CIFAR10Dataset,
    Corpus,
    DataLoader,
    Dictionary,
    MNISTDataset,
    batchify,
    get_batch,
)


@pytest.fixture
def rng():
    return np.random.default_rng(11)


def idx(array):
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    return header + array.astype(np.uint8).tobytes()


# MNIST


@pytest.fixture
def mnist(tmp_path, rng):
    images, labels = rng.integers(0, 256, (7, 5, 6)), rng.integers(0, 10, 7)
    (tmp_path / "images").write_bytes(idx(images))
    (tmp_path / "labels").write_bytes(idx(labels))
    (tmp_path / "images.gz").write_bytes(gzip.compress(idx(images)))
    (tmp_path / "labels.gz").write_bytes(gzip.compress(idx(labels)))
    return tmp_path, images, labels


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_mnist(mnist, suffix):
    folder, images, labels = mnist
    data = MNISTDataset(folder / f"images{suffix}", str(folder / f"labels{suffix}"))
    assert len(data) == 7
    x, y = data[2]
    assert x.shape == (5, 6, 1) and x.dtype == np.float32 and y == labels[2]
    np.testing.assert_array_equal(x[..., 0], (images[2] / 255).astype(np.float32))
    x, y = data[1:4]
    assert x.shape == (3, 5, 6, 1)
    np.testing.assert_array_equal(y, labels[1:4])
    moved = MNISTDataset(folder / "images", folder / "labels", [lambda image: image + 1])
    np.testing.assert_array_equal(moved[3][0], data[3][0] + 1)
    np.testing.assert_array_equal(moved[:][0], data[:][0] + 1)
    batches = list(DataLoader(data, 4))
    assert [x.shape for x, _ in batches] == [(4, 5, 6, 1), (3, 5, 6, 1)]
    assert batches[0][1].dtype == "int32"


def test_mnist_files_that_are_not_right(mnist, tmp_path):
    folder, images, labels = mnist
    good = idx(images)
    for content, word in [
        (b"", "not an idx file"),
        (b"\x89PNG\r\n\x1a\n" + good, "not an idx file"),
        (good[:9], "truncated in the header"),
        (good[:-1], "truncated: 225 bytes, but shape (7, 5, 6) needs 226"),
        (good + b"\0", "too long"),
        (idx(labels), "1 axes"),
        (b"\0\0\x0d\x03" + good[4:], "type 13"),
        (b"\0\0\x08\x03" + b"\xff" * 12, "truncated"),
        (gzip.compress(good)[:-20], "damaged gzip"),
        (gzip.compress(good)[:20] + b"\xff" * 40, "damaged gzip"),
        (idx(images[:6]), "6 images"),
    ]:
        (tmp_path / "bad").write_bytes(content)
        with pytest.raises(ValueError) as raised:
            MNISTDataset(tmp_path / "bad", folder / "labels")
        assert word in str(raised.value) and str(tmp_path / "bad") in str(raised.value)
    with pytest.raises(FileNotFoundError, match="absent"):
        MNISTDataset(folder / "images", tmp_path / "absent")


# CIFAR-10


def python2_batch(images, labels):
    """A batch in the format of the published files: Python 2's cPickle, protocol 2."""

    def text(value):  # SHORT_BINSTRING
        return b"U" + bytes([len(value)]) + value

    data = images.tobytes()
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x05cnumpy\nndarray\nq\x06K\x00\x85U\x01b\x87Rq\x07"
        + b"(K\x01M"
        + struct.pack("<H", len(labels))
        + b"M\x00\x0c\x86cnumpy\ndtype\nq\x08U\x02u1K\x00K\x01\x87Rq\x09"
        + b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T"
        + struct.pack("<i", len(data))
        + data
        + b"tb"
    )
    return (
        b"\x80\x02}q\x01("
        + text(b"batch_label")
        + text(b"training batch 1 of 5")
        + text(b"labels")
        + b"]q\x04("
        + b"".join(b"K" + bytes([n]) for n in labels)
        + b"e"
        + text(b"data")
        + array
        + text(b"filenames")
        + b"]("
        + text(b"a.png") * len(labels)
        + b"eu."
    )


def python3_batch(images, labels):
    content = {b"data": images, b"labels": [int(n) for n in labels], b"filenames": [b"a.png"]}
    return pickle.dumps(content, protocol=2)


def binary_batch(images, labels):
    return np.concatenate([labels[:, None].astype(np.uint8), images], axis=1).tobytes()


FORMATS = {
    "python2": (python2_batch, "cifar-10-batches-py", ""),
    "python3": (python3_batch, "", ""),
    "binary": (binary_batch, "cifar-10-batches-bin", ".bin"),
}


@pytest.mark.parametrize("kind", FORMATS)
def test_cifar10(tmp_path, rng, kind):
    write, folder, suffix = FORMATS[kind]
    (tmp_path / folder).mkdir(exist_ok=True)
    parts = {}
    for name in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        parts[name] = rng.integers(0, 256, (3, 3072), np.uint8), rng.integers(0, 10, 3)
        (tmp_path / folder / f"{name}{suffix}").write_bytes(write(*parts[name]))
    train, test = CIFAR10Dataset(tmp_path, True), CIFAR10Dataset(str(tmp_path), train=False)
    assert (len(train), len(test)) == (15, 3)
    images = np.concatenate([parts[f"data_batch_{i}"][0] for i in range(1, 6)])
    expected = (images / 255).astype(np.float32).reshape(-1, 3, 32, 32)
    np.testing.assert_array_equal(train.X, expected)
    x, y = train[4]
    np.testing.assert_array_equal(x, expected[4])
    assert y == parts["data_batch_2"][1][1] and x.dtype == np.float32 and y.dtype == np.int32
    np.testing.assert_array_equal(test.y, parts["test_batch"][1])
    turned = CIFAR10Dataset(tmp_path, True, transforms=[lambda image: image[:, ::-1]])
    np.testing.assert_array_equal(turned[4][0], expected[4][:, :, ::-1])  # images are (H, W, C)
    np.testing.assert_array_equal(turned[2:5][0], expected[2:5][:, :, :, ::-1])
    assert next(iter(DataLoader(turned, 4)))[0].shape == (4, 3, 32, 32)


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def array(shape=(2, 3072), dtype=np.uint8):
    return np.zeros(shape, dtype)


def test_cifar10_files_that_are_not_right(tmp_path, rng):
    good = python2_batch(rng.integers(0, 256, (2, 3072), np.uint8), [1, 2])
    evil = tmp_path / "evil"

    def dump(**content):
        return pickle.dumps({k.encode(): v for k, v in content.items()}, protocol=2)

    for content, word in [
        (b"", "EOFError"),
        (b"no pickle at all", "not a CIFAR-10 batch"),
        (good[:-1000], "not a CIFAR-10 batch"),
        (good[:40], "not a CIFAR-10 batch"),
        (pickle.dumps([1], protocol=2), "a list, not a dict"),
        (dump(labels=[1, 2]), "'data' is not an array"),
        (dump(data=array(), labels=[1, "2"]), "list of ints"),
        (dump(data=array(), labels=[1, 10]), "label 10"),
        (dump(data=array(), labels=[1, -1]), "label -1"),
        (dump(data=array(), labels=[1, 2**70]), "is not in 0..9"),
        (dump(data=array(), labels=[1]), "each of 1 labels"),
        (dump(data=array((2, 3071)), labels=[1, 2]), "3072 bytes"),
        (dump(data=np.asfortranarray(array()), labels=[1, 2]), "3072 bytes"),
        (dump(data=array(dtype=np.float32), labels=[1, 2]), "f4"),
        (dump(data=np.array([None, 1]), labels=[1, 2]), "O8"),
        (dump(data=Evil(evil), labels=[1, 2]), "open is not allowed in it"),
        (pickle.dumps(Evil(evil)), "open is not allowed in it"),
        (b"cos\nsystem\n(S'touch evil'\ntR.", "os.system is not allowed in it"),
        (b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\ndtype\nNN\x87R.", "not an array"),
        (b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x05\x00\x00\x00utf-7\x86R.", "latin1"),
    ]:
        (tmp_path / "test_batch").write_bytes(content)
        with pytest.raises(ValueError) as raised:
            CIFAR10Dataset(tmp_path, train=False)
        assert word in str(raised.value), raised.value
        assert str(tmp_path / "test_batch") in str(raised.value)
        assert not evil.exists()
    for position in range(0, len(good), 97):  # damage anywhere gives an array of bytes or an error
        (tmp_path / "test_batch").write_bytes(good[:position] + b"\xee" + good[position + 1 :])
        try:
            assert CIFAR10Dataset(tmp_path, train=False).images.shape == (2, 3, 32, 32)
        except ValueError as error:
            assert "test_batch" in str(error)


def test_cifar10_files_that_are_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"neither data_batch_1 nor data_batch_1\.bin"):
        CIFAR10Dataset(tmp_path, train=True)
    for i in (1, 2, 3, 5):
        (tmp_path / f"data_batch_{i}.bin").write_bytes(b"\0" * 3073)
    with pytest.raises(FileNotFoundError, match=r"data_batch_4\.bin is missing"):
        CIFAR10Dataset(tmp_path, train=True)
    (tmp_path / "test_batch.bin").write_bytes(b"\0" * 3072)
    with pytest.raises(ValueError, match="3072 bytes are not a whole number of records of 3073"):
        CIFAR10Dataset(tmp_path, train=False)


# Text


def test_dictionary():
    words = Dictionary()
    assert [words.add_word(word) for word in "a b a c b".split()] == [0, 1, 0, 2, 1]
    assert words.idx2word == ["a", "b", "c"] and words.word2idx["c"] == 2 and len(words) == 3


@pytest.mark.parametrize("prefix", ["", "ptb."])
def test_corpus(tmp_path, prefix):
    (tmp_path / f"{prefix}train.txt").write_text(" the cat \n the <unk> N\n\n")
    (tmp_path / f"{prefix}test.txt").write_text("a cat\n")
    corpus = Corpus(tmp_path)
    words = ["the", "cat", "<eos>", "<unk>", "N", "a"]
    assert corpus.dictionary.idx2word == words
    text = [words[i] for i in corpus.train]
    assert text == "the cat <eos> the <unk> N <eos> <eos>".split()
    assert corpus.test.tolist() == [5, 1, 2] and corpus.valid is None
    (tmp_path / f"{prefix}valid.txt").write_text("a dog\n")
    corpus = Corpus(str(tmp_path), max_lines=1)
    assert corpus.dictionary.idx2word == ["the", "cat", "<eos>", "a", "dog"]
    assert corpus.train.tolist() == [0, 1, 2] and corpus.valid.tolist() == [3, 4, 2]


def test_corpora_that_are_not_right(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"neither train\.txt nor ptb\.train\.txt"):
        Corpus(tmp_path)
    (tmp_path / "train.txt").write_text("a b\n")
    with pytest.raises(FileNotFoundError, match=r"test\.txt"):
        Corpus(tmp_path)
    for content, word in [(b"", "contains no text"), (b"\xff\xfe\0", "not a text file")]:
        (tmp_path / "test.txt").write_bytes(content)
        with pytest.raises(ValueError, match=word) as raised:
            Corpus(tmp_path)
        assert "test.txt" in str(raised.value)


def test_batches_of_text(device):
    batches = batchify(np.arange(20), 3)
    expected = [[0, 6, 12], [1, 7, 13], [2, 8, 14], [3, 9, 15], [4, 10, 16], [5, 11, 17]]
    assert batches.tolist() == expected and batches.dtype == np.int32
    assert batchify(list(range(20)), 3, device, "float32").dtype == np.float32
    data, target = get_batch(batches, 1, 2, device)
    assert data.numpy().tolist() == expected[1:3] and data.dtype == "int32"
    assert target.numpy().tolist() == [*expected[2], *expected[3]]
    assert data.device is device and not data.requires_grad
    data, target = get_batch(batches, 4, 9, device=device, dtype="float32")
    assert data.numpy().tolist() == [expected[4]] and target.numpy().tolist() == expected[5]
    assert data.dtype == target.dtype == "float32"
    for i in (5, 6, -1):
        with pytest.raises(IndexError, match=f"row {i}"):
            get_batch(batches, i, 2)
    for size in (0, 21):
        with pytest.raises(ValueError, match=f"batch_size {size}"):
            batchify(np.arange(20), size)
    assert isinstance(data, ndl.Tensor)
