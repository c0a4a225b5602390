"""Every op, layer, loss and optimizer works on each device, and nothing of it is on another one."""

import numpy as np
import pytest

import needle as ndl
from needle import nn, optim
from needle.ops import REGISTRY
from needle.testing import examples
from tests import torch_layers

OWN = sorted(name for name, op in REGISTRY.items() if op.__module__.startswith("needle."))
LAYERS = {
    name: case
    for table in (
        torch_layers.ACTIVATIONS,
        torch_layers.BASIC,
        torch_layers.NORMS,
        torch_layers.RECURRENT,
        torch_layers.TRANSFORMERS,
        torch_layers.LOSSES,
    )
    for name, case in table
}
OPTIMIZERS = {
    "SGD": {"momentum": 0.9},
    "Adam": {"amsgrad": True},
    "AdamW": {},
    "Adagrad": {},
    "RMSprop": {"momentum": 0.5, "centered": True},
    "Lion": {},
    "Adafactor": {},
    "Muon": {},
}


def placed(value, device):
    if isinstance(value, tuple):
        return tuple(placed(part, device) for part in value)
    return ndl.Tensor(value, device=device) if isinstance(value, np.ndarray) else value


def tensors(value):
    if isinstance(value, ndl.Tensor):
        yield value
    elif isinstance(value, (tuple, list, ndl.TensorTuple)):
        for part in value:
            yield from tensors(part)


def check(results, leaves, device):
    """Results, their gradients and the gradients of these are on the device."""
    results = list(tensors(results))
    assert {x.device for x in results} <= {device}
    roots = [x.astype("float64").sum() for x in results if x.requires_grad]
    if not roots:
        return
    total = sum(roots[1:], roots[0])
    total.backward(create_graph=True)
    grads = [x.grad for x in leaves if x.grad is not None]
    assert {g.device for g in grads} <= {device}
    roots = [(g * g).astype("float64").sum() for g in grads if g.requires_grad]
    if roots:
        sum(roots[1:], roots[0]).backward()
        assert {x.grad.device for x in leaves if x.grad is not None} <= {device}


@pytest.mark.parametrize("dtype", ["float32", "int64", "float16"])
@pytest.mark.parametrize("name", OWN)
def test_ops(name, dtype, device):
    for sample in REGISTRY[name].samples:
        op, rng = REGISTRY[name](**sample.attributes), np.random.default_rng(0)
        arrays = [examples.draw(arg, dtype, rng) for arg in sample.inputs]
        given = [examples.tensor(a, device, op.has_gradient) for a in arrays]
        leaves = [x for x in tensors(given) if x.is_leaf and x.requires_grad]
        try:
            op.infer(*[examples.spec(a, device) for a in arrays])
        except (TypeError, ValueError):
            continue
        with np.errstate(all="ignore"):
            check(op(*given), leaves, device)


@pytest.mark.parametrize("name", LAYERS)
def test_layers_and_losses(name, device):
    case = LAYERS[name]
    layer = case.ours().to(device)
    layer.train(case.train)
    values = [placed(x, device) for x in case.inputs(np.random.default_rng(0))]
    count = len(values) - len(case.keywords)
    out = layer(*values[:count], **dict(zip(case.keywords, values[count:], strict=True)))
    leaves = [*layer.parameters(), *(x for x in tensors(values) if x.requires_grad)]
    check(out, leaves, device)
    assert {x.device for x in layer.state_dict().values()} <= {device}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name, device):
    layer = nn.Linear(3, 4, bias=False, device=device)
    optimizer = getattr(optim, name)(layer.parameters(), **OPTIMIZERS[name])
    averages = optim.EMA(layer)
    for _ in range(2):
        optimizer.zero_grad()
        (layer(ndl.ones(2, 3, device=device)) ** 2).sum().backward()
        optim.clip_grad_norm(layer.parameters(), 1.0)
        optimizer.step()
        averages.update()
    state = [x for of in optimizer.state_dict()["state"].values() for x in of.values()]
    held = [layer.weight, layer.weight.grad, *state, *averages.state_dict()["averages"]]
    assert len(state) > 1 and {x.device for x in held} == {device}
