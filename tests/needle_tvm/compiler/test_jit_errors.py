"""What `jit` refuses, and the gradients that no call may lose."""

import inspect
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import needle as ndl
import needle_tvm
from needle import nn, ops
from needle.errors import TraceError
from needle.op import Elementwise
from needle_runtime.errors import UsageError
from needle_tvm.errors import EagerWarning, TranslationError
from tests.needle_tvm.compiler.jitted import compilations, ones, plain
from tests.needle_tvm.conftest import make_mlp


def test_gradients_that_would_be_lost_are_refused():
    model = make_mlp(3, 2)
    x = ndl.Tensor(np.ones((2, 3), "float32"))

    @plain
    def loses(x):
        loss = model(x).sum()
        loss.backward()
        return loss

    with pytest.raises(TraceError, match=r"loses: .*gradient in model\.modules\.0\.\w+\.grad"):
        loses(x)
    assert all(p.grad is None for p in model.parameters()) and x.grad is None

    @plain
    def clips(x):
        loss = model(x).sum()
        loss.backward()
        return [p.grad * 0.5 for p in model.parameters()]  # not themselves, but what follows

    @plain
    def saliency(x):
        return ndl.autograd.grad(model(x).sum(), [x])[0]

    model(x).sum().backward()
    for found, p in zip(clips(x), model.parameters(), strict=True):
        np.testing.assert_allclose(found.numpy(), p.grad.numpy() / 2, rtol=1e-6)
    np.testing.assert_allclose(saliency(x).numpy(), x.grad.numpy(), rtol=1e-6)
    assert not saliency(x).requires_grad


def test_no_gradient_passes_through_a_call_unseen():
    weight = nn.Parameter(np.ones(3, "float32"))
    f = plain(lambda x: (x * weight, x * 2.0, (x * weight).detach()))
    x = ones(3)
    with_weight, of_input, detached = f(x)
    assert [y.requires_grad for y in (with_weight, of_input, detached)] == [True, False, False]
    with pytest.raises(RuntimeError, match=r"no gradient passes through .*jit function .*lambda"):
        (with_weight + weight).sum().backward()
    assert weight.grad is None
    (with_weight.detach() * weight + of_input).sum().backward()
    assert weight.grad.numpy().tolist() == [1, 1, 1]
    with ndl.no_grad():
        assert not any(y.requires_grad for y in f(x))


def test_what_cannot_be_traced_is_an_error_that_names_function_and_line():
    class Keeps:
        def run(self, x):
            self.kept = x
            return x

    def reads(x):
        return x * float(ops.exp(x).sum())

    def branches(x):
        return x if x.sum() > 0 else -x

    def draws(x):
        return ndl.scan(lambda s, _: (s + ndl.init.rand(3), s), x, None, 4)[0]

    def writes(x):
        x.data = ones(3)
        return x

    def returns_a_number(x):
        return x, x.shape[0]

    def returns_nothing(x):
        return None

    line = inspect.getsourcelines(reads)[1] + 1
    here = Path(__file__).name
    for function, match in (
        (reads, rf"reads: .*made by op 'summation'.*{here}:{line} \(return x \* float"),
        (branches, rf"branches: .*op 'compare'.*{here}:\d+ \(return x if"),
        (draws, rf"draws: .*random numbers.*{here}:\d+"),
        (writes, rf"writes: .*writes to the float32\[3\] input.*{here}:\d+"),
        (returns_a_number, "returns_a_number: the result holds a int"),
        (returns_nothing, "returns_nothing: the result holds no tensor and nothing is written"),
    ):
        compiled = plain(function)
        for _ in range(2):
            with pytest.raises(TraceError, match=match):
                compiled(ones(3))
        assert compiled.cache_info() == (0, 16, 0)


def test_exceptions_of_the_function_pass_through():
    broken = [True]

    @plain
    def f(x):
        if broken:
            raise ZeroDivisionError("mine")
        return x + 1.0

    with pytest.raises(ZeroDivisionError, match=r"^mine$"):
        f(ones(2))
    with pytest.raises(ndl.ShapeError, match="matmul"):
        plain(lambda a, b: a @ b)(ones(2, 3), ones(2, 3))
    broken.clear()
    assert f(ones(2)).numpy().tolist() == [2, 2]


def test_fallback_to_eager_is_said_once():
    @needle_tvm.jit(fallback="eager", stage="noopt")
    def f(x):
        return x * float(x.sum()), "a note"

    with pytest.warns(EagerWarning, match=r"f: runs eagerly: .*reads the value") as seen:
        for size in (2, 2, 3):
            found, note = f(np.ones(size, "float32"))
            assert found.numpy().tolist() == [size] * size and note == "a note"
    assert len(seen) == 1 and seen[0].filename == __file__
    assert f.cache_info() == (0, 16, 2)

    class Chooses(nn.Linear):
        def forward(self, x):
            y = super().forward(x)
            return y * float(y.sum()) if self.training else y

    model = Chooses(3, 3)
    g = needle_tvm.jit(model, fallback="eager", stage="noopt")
    with pytest.warns(EagerWarning, match="Chooses: runs eagerly: .*reads the value"):
        g(ones(2, 3))
    model.eval()  # can be traced
    np.testing.assert_allclose(g(ones(2, 3)).numpy(), model(ones(2, 3)).numpy(), rtol=1e-5)
    assert compilations(g) == 1


def test_an_op_that_cannot_be_translated_is_named():
    @dataclass(frozen=True, eq=False)
    class Untold(Elementwise):
        name, arity = "untold", 1

        def compute(self, x):
            return x

    f = plain(lambda x: Untold()(x))
    with pytest.raises(TranslationError, match=r"<lambda>: .*'?untold'?.*emit_te is not defined"):
        f(ones(2))


@pytest.mark.parametrize(
    ("keywords", "match"),
    [
        ({"static": ("z",)}, "static='z': f has no such argument"),
        ({"static": ("rest",)}, "static='rest'"),
        ({"static": "x"}, "static='x': must be names"),
        ({"maxsize": 0}, "maxsize=0"),
        ({"fallback": "numpy"}, "fallback='numpy'"),
        ({"log": 3}, "log=3"),
        ({"stage": "best"}, "best"),
        ({"target": "abacus"}, "abacus"),
    ],
)
def test_bad_keywords_are_refused_at_once(keywords, match):
    def f(x, *rest):
        return x

    with pytest.raises(UsageError, match=match):
        needle_tvm.jit(f, **keywords)


def test_only_functions_are_taken():
    def generator(x):
        yield x

    async def coroutine(x):
        return x

    for wrong in (generator, coroutine, nn.Linear, 3):
        with pytest.raises(UsageError, match="jit: "):
            needle_tvm.jit(wrong)
    with pytest.raises(TypeError, match="unexpected keyword"):
        needle_tvm.jit(lambda x: x, size=3)
