"""Convolutions of one tensor whose results are added up, as one convolution."""

from dataclasses import replace

import numpy as np
import pytest

import needle_tvm
from needle_tvm._tvm.names import relax, tvm
from needle_tvm.graph.passes.merge_branches import merge_branches
from needle_tvm.tir.functions import static_shape
from tests.needle_tvm.kernels.conv.convolutions import conv
from tests.needle_tvm.modules import AVX512, Spec, check_stays, emit, relax_module

torch = pytest.importorskip("torch")
nn = torch.nn
add, subtract, multiply = relax.op.add, relax.op.subtract, relax.op.multiply

X, W3, W1, ROW = Spec(2, 7, 6, 4), Spec(3, 3, 4, 4), Spec(1, 1, 4, 4), Spec(4)


class Branches(nn.Module):
    """The sum of branches, each with batch norm, and of their input by `others`."""

    def __init__(self, *branches, others=0, last=None):
        super().__init__()
        self.branches = nn.ModuleList(branches)
        self.others, self.last = others, last

    def forward(self, x):
        y = sum(branch(x) for branch in self.branches)
        y = y + self.others * x if self.others else y
        return self.last(y) if self.last else y


def norm(channels):
    layer = nn.BatchNorm2d(channels)
    for each in (layer.weight, layer.bias, layer.running_mean):
        nn.init.normal_(each)
    nn.init.uniform_(layer.running_var, 0.5, 2)
    return layer


def branch(inputs, outputs, window, **options):
    layer = nn.Conv2d(inputs, outputs, window, bias=False, **options)
    return nn.Sequential(layer, norm(outputs))


class Mixer(nn.Module):
    """FastViT's token mixer: a difference of branches, scaled, beside the input."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(6, 1, 1))
        one, other = branch(6, 6, 3, padding=1, groups=6), branch(6, 6, 1, groups=6)
        self.mixer, self.norm = Branches(one, other, norm(6)), norm(6)

    def forward(self, x):
        return x + self.scale * (self.mixer(x) - self.norm(x))


SAME, WIDE = {"padding": 1}, {"padding": 2}
MERGED = {  # with the number of convolutions that are left
    "RepVGG": (Branches(branch(6, 6, 3, **SAME), branch(6, 6, 1), norm(6)), 1),
    "RepVGG, a step of two": (
        Branches(branch(6, 9, 3, stride=2, **SAME), branch(6, 9, 1, stride=2), last=nn.ReLU()),
        1,
    ),
    "four of MobileOne, depthwise": (
        Branches(*(branch(6, 6, 3, groups=6, **SAME) for _ in range(4)), norm(6)),
        1,
    ),
    "groups": (
        Branches(branch(6, 6, 3, groups=2, **SAME), branch(6, 6, 1, groups=2), norm(6)),
        1,
    ),
    "other groups": (Branches(branch(6, 6, 3, groups=2, **SAME), branch(6, 6, 1, groups=3)), 2),
    "ACNet": (
        Branches(
            branch(6, 4, 3, **SAME),
            branch(6, 4, (1, 3), padding=(0, 1)),
            branch(6, 4, (3, 1), padding=(1, 0)),
        ),
        1,
    ),
    "a large window and a small one": (
        Branches(branch(6, 6, 5, groups=6, **WIDE), branch(6, 6, 3, groups=6, **SAME)),
        1,
    ),
    "dilation": (
        Branches(
            branch(6, 4, 3, dilation=2, **WIDE),
            branch(6, 4, 3, dilation=2, **WIDE),
            branch(6, 4, 1),
        ),
        1,
    ),
    "other dilations": (
        Branches(branch(6, 4, 3, dilation=2, **WIDE), branch(6, 4, 3, **SAME)),
        2,
    ),
    "a window beside the other": (
        Branches(branch(6, 4, (1, 3), padding=(0, 1)), branch(6, 4, (3, 1), padding=(1, 0))),
        2,
    ),
    "beside a residual": (Branches(branch(6, 6, 3, **SAME), branch(6, 6, 1), others=3), 1),
    "differences": (Mixer(), 1),
}


def convolutions(module):
    """The number of convolutions that the pass leaves of a module of needle's."""
    found = [0]

    def count(each):
        found[0] += isinstance(each, relax.Call) and "conv" in str(each.op)

    relax.analysis.post_order_visit(module["main"], count)
    return found[0]


@pytest.mark.parametrize("name", MERGED)
def test_networks_with_branches_are_right(name, monkeypatch):
    from needle_tvm.lower import pipeline

    model, left = MERGED[name]
    counts = []

    def counted(module, target):
        module = merge_branches(module, target)
        tidy = relax.transform.DeadCodeElimination()(module)
        counts.append(convolutions(tidy))
        return module

    counted.__name__ = "merge_branches"
    stages = pipeline.PIPELINES["llvm"]
    graph = tuple(counted if each is merge_branches else each for each in stages["tuned"].graph)
    tuned = replace(stages["tuned"], graph=graph)
    monkeypatch.setitem(pipeline.PIPELINES, "llvm", {**stages, "tuned": tuned})
    x = torch.randn(2, 6, 9, 8)
    compiled = needle_tvm.compile_torch(model.eval(), x, recompile=True)
    assert counts == [left]
    with torch.no_grad():
        wanted = model(x).numpy()
    # At most 6 x 25 products are summed in another order, of numbers of about 1.
    np.testing.assert_allclose(np.asarray(compiled(x)), wanted, rtol=1e-5, atol=3e-5)


def two(x, w, v):
    return add(conv(x, w), conv(x, v, 0))


STAYS = {
    "weights that are an input": (two, X, W3, W1, 1),
    "a function that does not name its parameters": (two, X, W3, W1, None),
    "other layouts": (
        lambda x, w, v: add(
            conv(x, w, data_layout="NCHW", kernel_layout="OIHW"),
            conv(x, v, 0, data_layout="NCHW", kernel_layout="OIHW"),
        ),
        *(Spec(2, 4, 7, 6), Spec(4, 4, 3, 3), Spec(4, 4, 1, 1), 2),
    ),
    "other inputs": (lambda x, w, v: add(conv(x, w), conv(emit(add(x, x)), v, 0)), X, W3, W1, 2),
    "other pixels": (
        lambda x, w, v: add(conv(x, w, [1, 1, 1, 1]), conv(x, v, [0, 2, 2, 0])),
        *(X, W3, W3, 2),
    ),
    "half precision": (
        two,
        *(Spec(*each.shape, dtype="float16") for each in (X, W3, W1)),
        2,
    ),
    "no images": (two, Spec(0, 7, 6, 4), W3, W1, 2),
}


@pytest.mark.parametrize("name", STAYS)
def test_what_stays(name):
    function, *specs, params = STAYS[name]
    check_stays(merge_branches, relax_module(function, *specs, params=params))


def read_twice(x, w, v):
    y = emit(conv(x, w))
    return add(y, conv(x, v, 0)), y


def scaled_by_pixel(x, w, v):
    return add(conv(x, w), multiply(x, v))


@pytest.mark.parametrize(
    ("function", "other"),
    [
        (read_twice, W1),
        (scaled_by_pixel, Spec(1, 7, 6, 1)),
        (lambda x, w, v: add(multiply(conv(x, w), v), multiply(x, v)), ROW),
    ],
)
def test_what_is_read_elsewhere_or_no_branch_stays(function, other):
    check_stays(merge_branches, relax_module(function, X, W3, other, params=2))


def test_a_channel_more_is_no_scale_of_the_input():
    specs = Spec(2, 7, 6, 1), Spec(3, 3, 1, 4), ROW
    check_stays(
        merge_branches,
        relax_module(lambda x, w, s: add(conv(x, w), multiply(x, s)), *specs, params=2),
    )


def run(module, arrays):
    machine = relax.VirtualMachine(tvm.compile(module, target="llvm"), tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, arrays)).numpy()


def test_signs_and_other_terms():
    """(r - conv(x, w)) - (conv(x, v) - b), of which no order of sums is kept but all signs."""

    def before(x, r, w, v, b):
        return subtract(subtract(r, conv(x, w)), subtract(conv(x, v, 0), b))

    specs = X, X, W3, W1, ROW
    module = relax_module(before, *specs, params=3)
    after = merge_branches(module, AVX512)
    tidy = relax.transform.DeadCodeElimination()(after)
    assert convolutions(tidy) == 1
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(each.shape).astype("float32") for each in specs]
    results = [run(each, arrays) for each in (module, tidy)]
    np.testing.assert_allclose(*results, rtol=1e-5, atol=1e-5)
    assert static_shape(tidy["main"].body.body) == (2, 7, 6, 4)
