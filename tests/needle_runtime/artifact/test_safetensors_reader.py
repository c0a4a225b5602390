"""Weights are read in place, and files that are not safetensors are refused."""

import json

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from safetensors.numpy import save

from needle_runtime.artifact import safetensors_reader


def test_safetensors_are_read_without_a_copy():
    arrays = {
        "empty": np.zeros((0, 3), np.float32),
        "scalar": np.full((), 3.0),
        "brain": np.arange(4).reshape(2, 2).astype(ml_dtypes.bfloat16),
        "truth": np.array([True, False]),
        "integers": np.arange(3),
        "bytes": np.arange(3, dtype=np.uint8),
        "half": np.ones(2, np.float16),
    }
    found = safetensors_reader.views(save(arrays))
    assert set(found) == set(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape
        np.testing.assert_array_equal(found[name], array)
    assert not any(array.flags.owndata or array.flags.writeable for array in found.values())
    assert safetensors_reader.views(save({})) == {}


A = b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}'


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        b'{"a": 1}',
        b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 12]}}',
        b'{"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}',
        b'{"a": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}}',
        b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]}}',
        b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}',
        b'{"a": {"dtype": "what", "shape": [2], "data_offsets": [0, 8]}}',
        b'{"a": {"dtype": "", "shape": [2], "data_offsets": [0, 8]}}',
        b'{"a": {"dtype": [], "shape": [2], "data_offsets": [0, 8]}}',
        b'{"a": {"dtype": "F32", "shape": ["2"], "data_offsets": [0, 8]}}',
        A + b', "b": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}',
    ],
)
def test_malformed_safetensors_are_refused(header):
    with pytest.raises(ValueError):
        safetensors_reader.views(raw(header, bytes(8)))
    with pytest.raises(ValueError, match="before its header"):
        safetensors_reader.views((1 << 40).to_bytes(8, "little") + header)
    assert set(safetensors_reader.views(raw(A + b"}", bytes(8)))) == {"a"}


def raw(header, values):
    return len(header).to_bytes(8, "little") + header + values


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
extents = st.sampled_from([0, 1, 2, 4, 8, -1, 2**31, 2**62, 2**63, 2**64, 1.0, True])
entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "BF16", "BOOL", "I64", "F8_E4M3", ""]) | values,
        "shape": st.lists(extents, max_size=70) | values,
        "data_offsets": st.lists(extents, max_size=3) | values,
    }
)
headers = st.dictionaries(
    st.sampled_from(["a", "b", "__metadata__", ""]), entries | values, max_size=3
)


@given(header=headers | values, size=st.sampled_from([0, 1, 2, 4, 8]))
@example(header={"a": {"dtype": "F32", "shape": [0, 2**62], "data_offsets": [0, 0]}}, size=0)
def test_whatever_a_header_holds_is_read_or_refused(header, size):
    try:
        found = safetensors_reader.views(raw(json.dumps(header).encode(), bytes(size)))
    except ValueError as error:
        assert len(str(error)) < 1000
    else:
        assert sum(array.nbytes for array in found.values()) == size
