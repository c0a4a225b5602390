"""Weights are read in place, and files that are none are refused."""

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save

from needle_tvm import safetensors_reader


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


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"[]",
        b'{"a": 1}',
        b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 12]}}',
        b'{"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}',
        b'{"a": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}}',
        b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]}}',
        b'{"a": {"dtype": "what", "shape": [2], "data_offsets": [0, 8]}}',
        b'{"a": {"dtype": "F32", "shape": ["2"], "data_offsets": [0, 8]}}',
    ],
)
def test_malformed_safetensors_are_refused(header):
    data = len(header).to_bytes(8, "little") + header + bytes(8)
    with pytest.raises((AttributeError, KeyError, TypeError, ValueError)):
        safetensors_reader.views(data)
    with pytest.raises(ValueError, match="before its header"):
        safetensors_reader.views((1 << 40).to_bytes(8, "little") + header)
