"""Saving and loading."""

import json
import os
import stat

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import needle as ndl
from needle import nn
from needle.serialize import load_metadata

VALUES = {
    "a.weight": np.arange(6, dtype="float32").reshape(2, 3),
    "b": np.array(2.5),
    "c": np.array([1, -2], "int32"),
    "d": np.array([[2**40]]),
    "e": np.array([True, False, True]),
    "empty": np.zeros((0, 3), "float32"),
}


def raw(header, values=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + values


def test_values_come_back(tmp_path, device):
    path = tmp_path / "x.safetensors"
    tensors = {name: ndl.Tensor(value, device=device) for name, value in VALUES.items()}
    ndl.save(path, tensors, {"note": "hallo"})
    back = ndl.load(path, device)
    assert list(back) == list(VALUES) and load_metadata(path) == {"note": "hallo"}
    for name, value in VALUES.items():
        assert back[name].dtype == value.dtype.name and back[name].device is device
        assert not back[name].requires_grad
        np.testing.assert_array_equal(back[name].numpy(), value)
    assert os.listdir(tmp_path) == ["x.safetensors"]


def test_a_module_is_its_state(tmp_path, device):
    first, second = (nn.BatchNorm1d(3, device=device) for _ in range(2))
    first(ndl.Tensor(np.random.default_rng(0).normal(size=(4, 3)), device=device))
    path = tmp_path / "m.safetensors"
    ndl.save(str(path), first)
    second.load_state_dict(ndl.load(path))
    np.testing.assert_array_equal(second.running_var.numpy(), first.running_var.numpy())


@pytest.mark.peer
def test_the_format_is_safetensors(tmp_path):
    numpy = pytest.importorskip("safetensors.numpy")
    ours, theirs = tmp_path / "a", tmp_path / "b"
    ndl.save(ours, VALUES)
    numpy.save_file({**VALUES}, theirs, {"k": "v"})
    for name, value in numpy.load_file(ours).items():
        np.testing.assert_array_equal(value, VALUES[name])
    for name, value in ndl.load(theirs).items():
        np.testing.assert_array_equal(value.numpy(), VALUES[name])
    assert load_metadata(theirs) == {"k": "v"}


def test_strided_values_are_saved_in_order(tmp_path, device):
    x = ndl.Tensor(np.arange(6.0).reshape(2, 3), device=device)
    ndl.save(tmp_path / "x", {"t": x.transpose(), "n": x.numpy()[:, ::-1]})
    back = ndl.load(tmp_path / "x")
    np.testing.assert_array_equal(back["t"].numpy(), x.numpy().T)
    np.testing.assert_array_equal(back["n"].numpy(), x.numpy()[:, ::-1])


def test_what_cannot_be_saved_is_refused(tmp_path):
    path = tmp_path / "x"
    for bad in (
        {"a": 1.5},
        {1: np.ones(2)},
        {"a": np.ones(2, "complex64")},
        {"__metadata__": np.ones(2)},
    ):
        with pytest.raises(TypeError, match="save"):
            ndl.save(path, bad)
    with pytest.raises(TypeError, match="metadata"):
        ndl.save(path, VALUES, {"a": 1})
    with pytest.raises(FileNotFoundError):
        ndl.save(tmp_path / "no" / "x", VALUES)
    assert os.listdir(tmp_path) == []


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "x"
    ndl.save(path, {"a": np.ones(3)})
    before = path.read_bytes()

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        ndl.save(path, VALUES)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["x"]


def test_files_have_the_usual_permissions(tmp_path):
    old = os.umask(0o027)
    try:
        ndl.save(tmp_path / "x", VALUES)
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o640


def test_every_truncation_is_noticed(tmp_path):
    path, cut = tmp_path / "x", tmp_path / "cut"
    ndl.save(path, VALUES)
    whole = path.read_bytes()
    for length in range(len(whole)):
        cut.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="cut"):
            ndl.load(cut)
    cut.write_bytes(whole + b"x")
    with pytest.raises(ValueError, match="too long"):
        ndl.load(cut)


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "only 0 bytes"),
        ((10**9).to_bytes(8, "little") + b"{}", "claims 1000000000 bytes"),
        (raw(b"{"), "not JSON"),
        (raw(b"\xff\xfe"), "not JSON"),
        (raw(b"[" * 100_000), "not JSON"),
        (raw([]), "JSON, but not an object"),
        (raw(b'{"a": {}, "a": {}}'), "twice"),
        (raw({"a": {}}), "does not have dtype"),
        (raw({"a": entry(shape=(-2,))}), r"shape \[-2\]"),
        (raw({"a": entry(shape=(2.0,))}), "shape"),
        (raw({"a": entry(offsets=(0,))}), "data_offsets"),
        (raw({"a": entry(offsets=(0, 7))}, b"x" * 7), "should take bytes 0 to 8"),
        (raw({"a": entry(), "b": entry()}, b"x" * 8), "should take bytes 8 to 16"),
        (raw({"a": entry(offsets=(4, 12))}, b"x" * 12), "should take"),
        (raw({"a": entry(shape=(2**62, 2**62))}, b"x" * 8), "should take"),
        (raw({"a": entry("F8_E4M3", (8,))}, b"x" * 8), "'F8_E4M3', which needle cannot store"),
        (raw({"a": entry([], (8,))}, b"x" * 8), r"dtype \[\], which needle cannot store"),
        (raw({"a": entry({"F32": 1}, (8,))}, b"x" * 8), "dtype {'F32': 1}"),
        (raw({"a": entry(shape=(0, 2**63), offsets=(0, 0))}), "shape"),
        (raw({"a": entry(shape=(0, 2**62), offsets=(0, 0))}), "'a': .*too big"),
        (raw({"a": entry(shape=(1,) * 65, offsets=(0, 4))}, b"x" * 4), "shape"),
        (raw({"a": entry(shape=(1,) * 40, offsets=(0, 4))}, b"x" * 4), "'a': .*dimensions"),
        (raw({"__metadata__": {"a": 1}}), "metadata"),
        (raw({"__metadata__": None}), "metadata"),
    ],
)
def test_damaged_files_are_refused(content, complaint, tmp_path):
    path = tmp_path / "bad.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=complaint) as raised:
        ndl.load(path)
    assert str(raised.value).startswith(str(path))


def test_what_a_file_holds_is_not_shown_whole(tmp_path):
    path = tmp_path / "bad"
    for header in ({"a" * 10**6: {}}, {"a": entry(shape=[-1] * 10**6)}, {"a": entry("x" * 10**6)}):
        path.write_bytes(raw(header))
        with pytest.raises(ValueError, match="bad") as raised:
            ndl.load(path)
        assert len(str(raised.value)) < 1000


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
extents = st.sampled_from([0, 1, 2, 3, 8, -1, 2**31, 2**62, 2**63, 2**64, 1.0, True])
entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "BF16", "BOOL", "I64", "F8_E4M3", ""]) | values,
        "shape": st.lists(extents, max_size=20) | values,
        "data_offsets": st.lists(extents, max_size=3) | values,
    }
)
headers = st.dictionaries(
    st.sampled_from(["a", "b", "__metadata__", ""]), entries | values, max_size=3
)


@given(header=headers, size=st.sampled_from([0, 1, 2, 4, 8]))
@example(header={"a": {"dtype": [], "shape": [], "data_offsets": [0, 0]}}, size=0)
def test_whatever_a_header_holds_is_read_or_refused(header, size, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "drawn.safetensors"
    path.write_bytes(raw(header, bytes(size)))
    for read in (ndl.load, load_metadata):
        try:
            read(path)
        except ValueError as error:
            assert str(error).startswith(str(path)) and "\n" not in str(error)


@given(data=st.data())
def test_whatever_bytes_change_the_file_is_read_or_refused(data, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "changed.safetensors"
    ndl.save(path, VALUES)
    changed = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(changed)
    try:
        ndl.load(path)
    except ValueError as error:
        assert str(error).startswith(str(path))


def test_masked_arrays_are_refused_and_nothing_is_written(tmp_path):
    with pytest.raises(TypeError, match=r"save: 'm': MaskedArray has a mask.*\.filled\("):
        ndl.save(tmp_path / "x", {"a": np.ones(2), "m": np.ma.array([1.0], mask=[True])})
    assert os.listdir(tmp_path) == []


def test_missing_files_and_folders(tmp_path):
    with pytest.raises(FileNotFoundError, match="none"):
        ndl.load(tmp_path / "none")
    with pytest.raises(OSError):
        ndl.load(tmp_path)
