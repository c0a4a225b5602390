"""Layers and losses, compiled with their gradients, beside PyTorch."""

from contextlib import nullcontext

import pytest

import needle as ndl
import needle_tvm
from needle.testing import assert_close
from needle_tvm.check.campaign.judge import own_cache
from needle_tvm.lower.libraries import unoptimized
from tests.torch_layers import ACTIVATIONS, CASES, Pair, flat, learned

pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings("ignore::UserWarning")]


def check(name, stage):
    torch = pytest.importorskip("torch")
    pair = Pair(CASES[name], torch)
    expected = pair.expected()
    model = pair.ours
    names = [n for n, _ in model.named_parameters()]

    def step(args, kwargs, weights):
        outputs = flat(model(*args, **kwargs))
        total = sum((y * w).sum() for y, w in zip(outputs, weights, strict=True))
        inputs = learned([*args, *kwargs.values()])
        leaves = [*inputs, *model.parameters()]
        grads = ndl.autograd.grad(total, leaves) if leaves else []
        return outputs, grads[: len(inputs)], grads[len(inputs) :]

    args, kwargs = pair.our_arguments()
    weights = [ndl.Tensor(w, requires_grad=False) for w in expected[1]]
    outputs, grads, named = needle_tvm.jit(step, stage=stage)(args, kwargs, weights)
    arrays = dict(zip(names, (g.numpy() for g in named), strict=True))
    pair.check([y.numpy() for y in outputs], [g.numpy() for g in grads], arrays, expected)


# Batch norm in train mode writes to its buffers, which a trace refuses. The inputs of a compiled
# function are distinct.
TRACED = [name for name, case in CASES.items() if not case.train and not case.repeats]
ELEMENTWISE = [name for name, _ in ACTIVATIONS if name in TRACED]


# One of each kind; the slow test below has all.
KINDS = """Bilinear EmbeddingBag Conv3d ConvTranspose2d AvgPool3d AdaptiveMaxPool2d BatchNorm3d
    RMSNorm GroupNorm LSTM GRU MultiheadAttention CosineSimilarity CrossEntropyLoss
    BCEWithLogitsLoss TripletMarginLoss"""
QUICK = [next(name for name in TRACED if name.startswith(f"{kind}(")) for kind in KINDS.split()]


@pytest.mark.parametrize("name", QUICK)
def test_a_compiled_layer_is_torchs(name):
    check(name, "noopt")


def test_all_activations_in_one_function():
    torch = pytest.importorskip("torch")
    pairs = [Pair(CASES[name], torch) for name in ELEMENTWISE]
    models = [pair.ours for pair in pairs]
    args = [ndl.Tensor(pair.arrays[0], requires_grad=True) for pair in pairs]
    expected = [pair.expected() for pair in pairs]
    weights = [ndl.Tensor(each[1][0], requires_grad=False) for each in expected]

    def step(args, weights):
        outputs = [model(x) for model, x in zip(models, args, strict=True)]
        total = sum((y * w).sum() for y, w in zip(outputs, weights, strict=True))
        return outputs, ndl.autograd.grad(total, args)

    outputs, grads = needle_tvm.jit(step, stage="noopt")(args, weights)
    for name, y, grad, (theirs, _, their_grads, _) in zip(
        ELEMENTWISE, outputs, grads, expected, strict=True
    ):
        assert_close(y.numpy(), theirs[0], 300, scale=1.0, what=name)
        assert_close(grad.numpy(), their_grads[0], 300, scale=1.0, what=name)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRACED)
def test_a_layer_with_its_gradients(name):
    """Tuned; each third layer at another stage as well, and each third is optimised by LLVM, which
    takes most of the time."""
    place = TRACED.index(name)
    with own_cache():
        with nullcontext() if place % 3 == 0 else unoptimized():
            check(name, "tuned")
        if place % 3 == 1:
            with unoptimized():
                check(name, ("noopt", "fused")[place // 3 % 2])
