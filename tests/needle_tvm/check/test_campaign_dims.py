"""Programs of the campaign whose extents depend on dims."""

import collections
import dataclasses
import math

import numpy as np
import pytest

import needle as ndl
import needle_tvm
from needle.sizes.dims import Dim
from needle.trace import trace
from needle_tvm.check.campaign import sizes
from needle_tvm.check.campaign.draw import draw_with_dims
from needle_tvm.check.campaign.judge import judged
from needle_tvm.check.campaign.program import INPUT, Leaf, Program, Step
from needle_tvm.check.campaign.shrink import shrunk
from needle_tvm.check.campaign.sizes import Size, extent, least, most

SIZE = Size("n0", 4, 33, 4, 8)
NOOPT = [("noopt", 1)]

# Two inputs, of which a sum of rows and a product are returned.
PROGRAM = Program(
    (
        Leaf(INPUT, ("n0", "2 * n0"), "float32", 1),
        Leaf(INPUT, (3, "n0"), "float32", 2),
    ),
    (
        Step("ops.exp({0})", (0,)),
        Step("{0} @ {1}", (1, 2)),
        Step("ops.reshape({0}, (n0, 2, n0))", (0,)),
    ),
    (3, 4),
    dims=(SIZE,),
)


def test_an_extent_is_a_number_and_an_expression():
    n = extent(8, SIZE.dim)
    assert (f"{n}", f"{(n, 2 * n + 1)}") == ("n0", "(n0, (2 * n0 + 1))")
    assert n + 1 == 9 + 0 * n + (n - 8) and n != 8 and 2 * n == n + n
    assert n // 4 * 4 == n and n % 4 == 0 and type(n % 4) is int
    assert (least(n), most(2 * n), int(2 * n), least(5)) == (4, 64, 16, 5)
    assert math.prod([n, 2, 3]) == 6 * n
    assert SIZE.dim == eval(SIZE.declaration())


def test_sizes_are_ends_and_some_between():
    other = Size("n1", 1, 17, 1, 5)
    found = sizes.tested([SIZE, other])
    assert found[:2] == [{"n0": 4, "n1": 1}, {"n0": 32, "n1": 17}] and len(found) > 3
    assert all(each["n0"] % 4 == 0 and 1 <= each["n1"] <= 17 for each in found)
    assert found == sizes.tested([SIZE, other])


def test_every_program_has_dims_and_traces_at_all_its_sizes():
    mentioned = collections.Counter()
    for seed in range(80):
        program = draw_with_dims(seed)
        assert program.dims and Program.from_json(program.to_json()) == program
        model, inputs = program.load()
        _, others = program.at_sizes()
        assert others
        for arrays in (inputs, *others):
            trace(model, *map(ndl.Tensor, arrays))
        texts = [text for leaf in program.leaves for text in leaf.axes().values()]
        mentioned.update("whole" if text.isidentifier() else "expression" for text in texts)
        mentioned["shared"] += max(collections.Counter(texts).values()) > 1
        mentioned["several"] += len(program.dims) > 1
        mentioned["gradient"] += bool(program.gradient)
        mentioned["step"] += any("n0" in step.expression for step in program.steps)
    assert min(mentioned[kind] for kind in ("expression", "shared", "several", "step")) > 6
    assert mentioned["gradient"] > 5


def test_the_source_makes_inputs_of_every_size():
    model, inputs = PROGRAM.load()
    dims, others = PROGRAM.at_sizes()
    n0 = Dim("n0", min=4, max=33, multiple_of=4)
    assert dims == {"x0": {0: n0, 1: 2 * n0}, "x1": {1: n0}}
    assert [x.shape for x in inputs] == [(8, 16), (3, 8)]
    assert [x.shape for x in others[1]] == [(32, 64), (3, 32)]
    assert [y.shape for y in model(*map(ndl.Tensor, others[1]))] == [(3, 64), (32, 2, 32)]
    fixed = PROGRAM.without_dim(SIZE)
    assert not fixed.dims and fixed.leaves[0].shape == (8, 16)
    assert np.array_equal(fixed.load()[1][0], inputs[0])


def test_code_that_is_wrong_at_one_size_alone_is_found(monkeypatch):
    assert judged(PROGRAM.load, NOOPT, *PROGRAM.at_sizes())[1] == "right"
    real = needle_tvm.compile

    def wrong(*args, **options):
        compiled = real(*args, **options)

        def call(x, y):
            product, view = compiled(x, y)
            return (product + (len(x.numpy()) == 32), view)

        return call

    monkeypatch.setattr(needle_tvm, "compile", wrong)
    where, verdict, what = judged(PROGRAM.load, NOOPT, *PROGRAM.at_sizes())
    assert (where, verdict) == ("noopt, 1 thread", "wrong")
    assert "output 0" in what and "for inputs of [(32, 64), (3, 32)]" in what


def test_what_sizes_do_not_decide_is_refused():
    program = dataclasses.replace(PROGRAM, steps=(Step("{0}[:, :9]", (1,)),), outputs=(2,))
    _, verdict, what = judged(program.load, NOOPT, *program.at_sizes())
    assert verdict == "refused" and "n0 (4 to 32, a multiple of 4)" in what


@pytest.mark.parametrize("needs_dims", [True, False])
def test_a_shrunk_program_keeps_the_dims_that_the_failure_needs(needs_dims):
    def fails(program):
        steps = [step.expression for step in program.steps]
        return any("@" in step for step in steps) and bool(program.dims) >= needs_dims

    small = shrunk(PROGRAM, fails)
    assert [step.expression for step in small.steps] == ["{0} @ {1}"]
    assert bool(small.dims) is needs_dims
    model, inputs = small.load()
    model(*map(ndl.Tensor, inputs))
