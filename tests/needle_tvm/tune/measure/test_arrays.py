"""Arrays that are copied to a device and back: writes behind an output are noticed."""

import numpy as np
import pytest

from needle_runtime.memory import aligned_copy
from needle_tvm._tvm.names import tvm
from needle_tvm.tune.gate.gate import Gate
from needle_tvm.tune.measure.arrays import Arrays


@pytest.mark.parametrize("place", [0, -1])
def test_a_byte_behind_an_output_is_noticed(place, tmp_path):
    inputs = [aligned_copy(np.ones(3, np.float32))]
    outputs = [aligned_copy(np.zeros((2, 3), np.float32))]
    parameters = [
        {"name": name, "shape": array.shape, "dtype": "float32", "output": name == "y"}
        for name, array in (("x", inputs[0]), ("y", outputs[0]))
    ]
    gate = Gate(tmp_path, {"parameters": parameters, "cases": []})
    there = Arrays(tvm.cpu(), gate, inputs, outputs)
    assert not there.fetch()
    memory = np.from_dlpack(there._there[0])
    memory[outputs[0].nbytes :][place] = 1
    assert there.fetch()
