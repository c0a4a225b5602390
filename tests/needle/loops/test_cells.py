"""People's cells beside loops in NumPy, and their gradients beside differences, in float64."""

import numpy as np
import pytest

import needle as ndl
from tests.needle.directional import check_gradients
from tests.needle.loops.cells import CELLS, parts


@pytest.mark.parametrize(("steps", "batch"), [(2, 1), (9, 3), (40, 2)])
@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)
def test_values(cell, steps, batch):
    arrays = cell.inputs(steps, batch)
    found = parts(cell.model(*map(ndl.Tensor, arrays)))
    for value, wanted in zip(found, cell.numpy(*arrays), strict=True):
        np.testing.assert_allclose(value.numpy(), wanted, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)
def test_gradients_of_first_and_second_order(cell):
    if not cell.has_gradient:
        pytest.skip("its results are integers")

    def function(*tensors):
        return ndl.concat([part.reshape(-1) for part in parts(cell.model(*tensors))])

    check_gradients(function, *cell.inputs(5, 2), tolerance=1e-5)
