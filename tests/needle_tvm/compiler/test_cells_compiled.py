"""People's cells compiled, for any number of steps and any batch, beside eager."""

import numpy as np
import pytest

import needle as ndl
import needle_tvm
from tests.needle.loops.cells import CELLS, gradient, parts

QUICK = ("s4d", "hmm_forward")  # the others are slow
SIZES = ((2, 1), (3, 2), (17, 4), (40, 9))


def cells(quick=QUICK):
    return [
        pytest.param(cell, id=name, marks=() if name in quick else pytest.mark.slow)
        for name, cell in CELLS.items()
    ]


def compiled(function, cell, stage, dtype="float64"):
    dims = {"T": ndl.Dim("steps", min=2, max=40), "B": ndl.Dim("batch", max=9)}
    axes = ({axis: dims[n] for axis, n in enumerate(shape) if n in dims} for shape in cell.shapes)
    names = [f"x{n}" for n in range(len(cell.shapes))]
    # Inputs that have dims are given by name.
    model = eval(f"lambda {', '.join(names)}: function({', '.join(names)})", {"function": function})
    examples = map(ndl.Tensor, cell.inputs(6, 3, dtype))
    return needle_tvm.compile(
        model, *examples, stage=stage, dims={n: a for n, a in zip(names, axes, strict=True) if a}
    )


def check(run, function, cell, dtype="float64"):
    rtol = 1e-8 if dtype == "float64" else 1e-4
    for steps, batch in SIZES:
        wanted = parts(function(*map(ndl.Tensor, cell.inputs(steps, batch))))
        found = parts(run(*map(ndl.Tensor, cell.inputs(steps, batch, dtype))))
        for value, expected in zip(found, wanted, strict=True):
            expected = expected.numpy()
            atol = rtol * max(1.0, np.abs(expected).max(initial=0.0))
            np.testing.assert_allclose(value.numpy(), expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize("cell", cells())
def test_values(cell, tmp_path):
    run = compiled(cell.model, cell, "tuned")
    check(run, cell.model, cell)
    check(needle_tvm.load(run.export(tmp_path / "cell")), cell.model, cell)


@pytest.mark.slow
@pytest.mark.parametrize("name", CELLS)
def test_values_at_another_stage(name):
    """One of the two; gradients have the other."""
    cell, stage = CELLS[name], ("fused", "noopt")[list(CELLS).index(name) % 2]
    check(compiled(cell.model, cell, stage), cell.model, cell)


@pytest.mark.slow
@pytest.mark.parametrize("cell", cells())
def test_values_in_float32(cell):
    check(compiled(cell.model, cell, "tuned", "float32"), cell.model, cell, "float32")


@pytest.mark.parametrize("cell", [each for each in cells(QUICK[1:]) if each.values[0].has_gradient])
def test_gradients(cell, tmp_path):
    function = gradient(cell)
    run = compiled(function, cell, "tuned")
    check(run, function, cell)
    check(needle_tvm.load(run.export(tmp_path / "cell")), function, cell)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, cell in CELLS.items() if cell.has_gradient])
def test_gradients_at_another_stage(name):
    """One of the two."""
    cell = CELLS[name]
    function, stage = gradient(cell), ("noopt", "fused")[list(CELLS).index(name) % 2]
    check(compiled(function, cell, stage), function, cell)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["peephole_lstm", "s6", "rwkv", "kalman_filter"])
def test_second_gradients(name):
    function = gradient(CELLS[name], order=2)
    check(compiled(function, CELLS[name], "fused"), function, CELLS[name])
