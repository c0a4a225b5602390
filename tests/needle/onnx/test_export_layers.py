"""Every layer and loss as ONNX, in eval mode: ONNX Runtime's results are the layer's."""

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("tvm", reason="the table of needle's own layers is that of the compiled tests")

import needle as ndl
from needle.testing import assert_close
from needle.trace.graph import flatten_call, flatten_outputs
from tests.needle.onnx.exporting import loaded, run
from tests.needle_tvm.compiler.test_modules_compiled import CASES as OURS
from tests.needle_tvm.compiler.test_modules_compiled import draw, randomized
from tests.torch_layers import CASES

pytestmark = pytest.mark.slow


def check(model, args, kwargs, path):
    model.eval()
    with ndl.no_grad():
        _, expected = flatten_outputs(model(*args, **kwargs))
    ndl.onnx.export(model, tuple(args), path, kwargs=kwargs)
    _, inputs = flatten_call(None, tuple(args), kwargs)
    feeds = [x.numpy() for _, x in inputs]
    for results in (run(path, feeds), loaded(path, feeds)):
        for got, (name, want) in zip(results, expected, strict=True):
            assert_close(got, want.numpy(), rtol=3e-5, scale=1, what=name)


def tensors(value):
    """Arrays as Tensors, also in tuples; all else as it is."""
    if isinstance(value, tuple):
        return tuple(map(tensors, value))
    return ndl.Tensor(value) if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize("name", CASES)
def test_a_layer_as_pytorch_has_it(name, tmp_path):
    case = CASES[name]
    given = tensors(case.inputs(np.random.default_rng(0)))
    split = len(given) - len(case.keywords)
    kwargs = dict(zip(case.keywords, given[split:], strict=True))
    check(case.ours(), given[:split], kwargs, tmp_path / "layer.onnx")


@pytest.mark.parametrize("name", OURS)
def test_a_layer_of_ours(name, tmp_path):
    (make, shapes), rng = OURS[name], np.random.default_rng(0)
    model = randomized(make(), rng)
    check(model, [draw(rng, shape) for shape in shapes], {}, tmp_path / "layer.onnx")
