"""Inputs of PyTorch models that are indices are checked when compiled code is called."""

import numpy as np
import pytest

import needle_tvm
from needle_runtime.errors import InputError

torch = pytest.importorskip("torch", reason="compares with PyTorch")
STAGES = ("noopt", "fused", "tuned")


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(11, 4)

    def forward(self, ids, rows, places, columns, x):
        return (
            self.table(ids.reshape(-1)),
            x[rows],
            x.gather(1, places.long()),
            x.index_select(1, columns),
        )


VALID = {
    "ids": np.array([[0, 10]]),
    "rows": np.array([-3, 2]),
    "places": np.array([[0, 4]], "int32"),
    "columns": np.array([4, 0]),
}
# A value for which PyTorch raises IndexError or RuntimeError, and the range it lies outside.
WRONG = [("ids", 11, "0..10"), ("ids", -1, "0..10"), ("rows", 3, "-3..2"), ("rows", -4, "-3..2")]
WRONG += [("places", 5, "0..4"), ("places", -1, "0..4"), ("columns", 5, "0..4")]


@pytest.mark.parametrize("stage", STAGES)
def test_what_pytorch_refuses_is_refused_by_name(stage):
    model = Model().eval()
    x = np.random.default_rng(0).standard_normal((3, 5)).astype("float32")
    given = {**VALID, "x": x}
    tensors = {name: torch.from_numpy(array) for name, array in given.items()}
    compiled = needle_tvm.compile_torch(model, *tensors.values(), stage=stage)
    with torch.no_grad():
        expected = model(**tensors)
    for found, value in zip(compiled(**given), expected, strict=True):
        np.testing.assert_array_equal(found.numpy(), value.numpy())
    for name, value, valid in WRONG:
        changed = {**given, name: np.full_like(given[name], value)}
        with pytest.raises((IndexError, RuntimeError)), torch.no_grad():
            model(**{n: torch.from_numpy(array) for n, array in changed.items()})
        with pytest.raises(InputError, match=rf"'{name}'.*{value}.*{valid}"):
            compiled(**changed)
