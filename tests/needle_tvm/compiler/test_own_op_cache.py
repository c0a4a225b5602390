"""A model with an op that is not needle's is cached by the module that the op's rules lower to."""

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import needle as ndl
import needle_tvm
from needle.op import REGISTRY, Elementwise, register
from needle_tvm.errors import MismatchError, TranslationError
from needle_tvm.lower import build
from tests.needle_tvm.conftest import tensor

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)


@pytest.fixture(autouse=True)
def new_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NEEDLE_CACHE_DIR", str(tmp_path / "cache"))


def factor():
    return 2.0


@pytest.fixture
def op():
    class CachedScale(Elementwise):
        """y = number * factor() * x."""

        number: float

        def compute(self, x):
            return x * (self.number * factor())

        def gradient(self, out_grad, node):
            return out_grad * (self.number * factor())

        def emit_te(self, k, x):
            number = self.number * factor()
            return k.te.compute(x.shape, lambda *i: x(*i) * k.tirx.const(number, x.dtype))

    yield register(CachedScale)
    del REGISTRY["cached_scale"]


def compile(fn, x=X, **options):
    return needle_tvm.compile(fn, tensor(x), **{"stage": "fused", **options})


def test_the_second_compilation_reloads(op):
    def model(x):
        return op(3.0)(x) + 1

    first, second = compile(model), compile(model)
    assert (first.from_cache, second.from_cache) == (False, True) and first.path == second.path
    np.testing.assert_allclose(second(tensor(X)).numpy(), 6 * X + 1, rtol=1e-6)


def test_two_processes_have_one_key(tmp_path):
    (tmp_path / "own.py").write_text(
        textwrap.dedent("""
        import sys
        import numpy as np, needle as ndl, needle_tvm
        from needle.op import Elementwise, register

        @register
        class Doubled(Elementwise):
            "y = 2 x."
            def compute(self, x): return x + x
            def emit_te(self, k, x): return k.topi.add(x, x)

        table = ndl.Tensor(np.arange(3.0, dtype="float32"), requires_grad=False)
        def dense(x): return Doubled()(ndl.ops.softmax(x, 1) + table), x.sum()
        def looped(x):
            def step(state, row):
                state = Doubled()(state) + row
                return state, state
            return ndl.scan(step, x[0], x)
        x = ndl.Tensor(np.ones((4, 3), "float32"))
        for fn in (dense, looped):
            for dims in (None, {0: {0: ndl.Dim("n", max=8)}}):
                exe = needle_tvm.compile(fn, x, dims=dims, stage=sys.argv[1])
                print(exe.from_cache, exe.path)
    """)
    )

    def run(stage, seed):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, tmp_path / "own.py", stage]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)
        assert done.returncode == 0, done.stderr
        return [line.split() for line in done.stdout.splitlines()]

    one, two = run("tuned", "1"), run("tuned", "2")
    assert [found for found, _ in one + two] == ["False"] * 4 + ["True"] * 4
    assert [path for _, path in one] == [path for _, path in two]
    assert len({path for _, path in one}) == 4


def table_of(values):
    return ndl.Tensor(np.asarray(values, np.float32), requires_grad=False)


ROWS = {0: {0: ndl.Dim("n", max=8)}}
CHANGES = {
    "attribute": lambda op: dict(fn=lambda x: op(4.0)(x)),
    "constant": lambda op: dict(fn=lambda x: op(3.0)(x) + table_of([1, 2, 3])),
    "another constant": lambda op: dict(fn=lambda x: op(3.0)(x) + table_of([1, 2, 4])),
    "dtype": lambda op: dict(x=X.astype("float64")),
    "shape": lambda op: dict(x=X[:3]),
    "dim": lambda op: dict(dims=ROWS),
    "bound of the dim": lambda op: dict(dims={0: {0: ndl.Dim("n", max=9)}}),
    "name of the dim": lambda op: dict(dims={0: {0: ndl.Dim("m", max=8)}}),
    "name of the input": lambda op: dict(fn=lambda y: op(3.0)(y)),
    "nesting of the output": lambda op: dict(fn=lambda x: (op(3.0)(x),)),
    "stage": lambda op: dict(stage="noopt"),
    "threads": lambda op: dict(threads=1),
    "precision": lambda op: dict(dtype="bfloat16"),
}


def test_whatever_decides_the_code_is_in_the_key(op):
    paths = {}
    for name, change in {"itself": lambda op: {}, **CHANGES}.items():
        given = {"fn": lambda x: op(3.0)(x), **change(op)}
        found = compile(**given)
        assert not found.from_cache, name
        assert compile(**given).from_cache, name
        paths[name] = found.path
    assert len(set(paths.values())) == len(paths)


def test_a_changed_rule_or_helper_is_compiled_anew(op, monkeypatch):
    def model(x):
        return op(3.0)(x)

    compile(model)
    with monkeypatch.context() as changed:
        changed.setattr(
            op,
            "emit_te",
            lambda self, k, x: k.topi.add(x, k.topi.multiply(x, self.number * factor() - 1)),
        )
        assert not compile(model).from_cache
    with monkeypatch.context() as changed:
        changed.setattr(sys.modules[__name__], "factor", lambda: 5.0)
        found = compile(model)
        assert not found.from_cache
        np.testing.assert_allclose(found(tensor(X)).numpy(), 15 * X, rtol=1e-6)
    assert compile(model).from_cache


def test_what_a_rule_reads_from_a_file_is_in_the_key(op, tmp_path, monkeypatch):
    file = tmp_path / "factor"
    monkeypatch.setattr(sys.modules[__name__], "factor", lambda: float(file.read_text()))
    for text, is_hit in (("2", False), ("2", True), ("3", False), ("2", True)):
        file.write_text(text)
        found = compile(lambda x: op(1.0)(x))
        assert found.from_cache == is_hit
        np.testing.assert_allclose(found(tensor(X)).numpy(), float(text) * X, rtol=1e-6)


def test_an_op_in_a_loop_is_seen(op, monkeypatch):
    def model(x):
        def step(state, row):
            state = op(0.25)(state) + row
            return state, state

        return ndl.scan(step, x[0], x)

    compile(model)
    assert compile(model).from_cache
    monkeypatch.setattr(sys.modules[__name__], "factor", lambda: 1.0)
    assert not compile(model).from_cache


def test_code_from_the_cache_is_compared_with_a_changed_compute(op, monkeypatch):
    """`compute` is not in the module: only a comparison can show that it gives other results."""

    def model(x):
        return op(3.0)(x)

    compile(model)
    monkeypatch.setattr(op, "compute", lambda self, x: x * 7)
    with pytest.raises(MismatchError, match=r"cached_scale"):
        compile(model)
    assert compile(model, check=False).from_cache
    monkeypatch.setattr(op, "compute", lambda self, x: x * 6)
    assert compile(model).from_cache


def test_a_changed_gradient_is_another_graph(op, monkeypatch):
    weight = ndl.Tensor(np.ones_like(X), requires_grad=True)

    def model(x):
        y = op(3.0)(x * weight)
        return y, ndl.autograd.grad(y.sum(), [weight])[0]

    compile(model)
    assert compile(model).from_cache
    monkeypatch.setattr(op, "gradient", lambda self, out_grad, node: out_grad * 7)
    found = compile(model)
    assert not found.from_cache
    np.testing.assert_allclose(found(tensor(X))[1].numpy(), 7 * X, rtol=1e-6)


def test_a_module_without_a_text_is_compiled_each_time(op, monkeypatch):
    monkeypatch.setattr(build.tvm.ir, "save_json", refuse)
    found = [compile(lambda x: op(3.0)(x)) for _ in range(2)]
    assert [each.from_cache for each in found] == [False, False]
    np.testing.assert_allclose(found[1](tensor(X)).numpy(), 6 * X, rtol=1e-6)


def refuse(module):
    raise TypeError("Type `ffi.Function` does not support ToJSONGraph")


def test_a_function_has_no_text():
    tvm = build.tvm
    module = tvm.IRModule({}, attrs={"f": tvm.runtime.convert(lambda x: x)})
    assert build.digest(module, {}) is None
    assert build.digest(tvm.IRModule({}), {"a": object()}) is None


def test_a_rule_that_fails_is_named_even_after_a_hit(op, monkeypatch):
    def model(x):
        return op(3.0)(x)

    compile(model)

    def fails(self, k, x):
        raise RuntimeError("no such table")

    monkeypatch.setattr(op, "emit_te", fails)
    with pytest.raises(TranslationError, match=r"cached_scale on .*no such table"):
        compile(model)


def test_jit_reloads_a_function_with_such_an_op(op):
    def model(x):
        return op(3.0)(x) * 2

    found = [needle_tvm.jit(model)(tensor(X)).numpy() for _ in range(2)]
    np.testing.assert_allclose(found[1], 12 * X, rtol=1e-6)
    np.testing.assert_array_equal(*found)
