"""Graph.fingerprint is equal for equal programs and differs for any other."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest

import needle as ndl
from needle import nn, ops
from needle.op import REGISTRY, Elementwise, register
from needle.trace import graph, library_code, trace


def tensor(*shape, dtype="float32"):
    return ndl.Tensor(np.ones(shape, dtype), device=ndl.cpu_numpy())


def mlp():
    layers = [nn.Linear(4, 8, device=ndl.cpu_numpy()), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(8, 2, device=ndl.cpu_numpy())).eval()


def test_fingerprint_is_the_same_in_another_process():
    code = (
        "import numpy as np, needle as ndl; from needle.trace import trace; from needle import nn\n"
        "d = ndl.cpu_numpy()\n"
        "m = nn.Sequential(nn.Linear(4, 8, device=d), nn.ReLU()).eval()\n"
        "print(trace(m, ndl.Tensor(np.ones((3, 4), 'float32'), device=d)).fingerprint())"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
        ).stdout
        for _ in range(2)
    ]
    assert runs[0] == runs[1] and len(runs[0]) == 65


def test_fingerprint_ignores_weights_only():
    x = tensor(3, 4)
    first = trace(mlp(), x).fingerprint()
    assert trace(mlp(), x).fingerprint() == first  # other random weights

    def of(fn, *args):
        return trace(fn, *args).fingerprint()

    table = ndl.Tensor(np.arange(2.0), requires_grad=False)
    other = ndl.Tensor(np.arange(1.0, 3.0), requires_grad=False)
    a, b = tensor(2), tensor(2)
    different = {
        "model": first,
        "shape": of(mlp(), tensor(4, 4)),
        "dtype": of(lambda x: x * 2, tensor(2, dtype="float64")),
        "op": of(lambda x: x + 2, tensor(2, dtype="float64")),
        "attribute": of(lambda x: x * 3, tensor(2, dtype="float64")),
        "kind of attribute": of(lambda x: x * 3.0, tensor(2, dtype="float64")),
        "constant": of(lambda x: x * table, tensor(2, dtype="float64").to(ndl.cpu())),
        "other constant": of(lambda x: x * other, tensor(2, dtype="float64").to(ndl.cpu())),
        "edges": of(lambda x, y: x - y, a, b),
        "other edges": of(lambda x, y: y - x, a, b),
        "names": of(lambda x, z: z - x, a, b),
        "nesting": of(lambda p: p[1] - p[0], (a, b)),
        "outputs": of(lambda x, y: (y - x,), a, b),
        "static": of(lambda x, n: x, a, 1),
        "other static": of(lambda x, n: x, a, 2),
    }
    assert len(set(different.values())) == len(different)


def own(name, base=Elementwise, **rules):
    """An own op of a class of this module."""
    cls = type(name, (base,), {"__module__": __name__, "__doc__": "An own op.", **rules})
    return register(cls)


def test_a_graph_with_an_own_op_has_none():
    cls = own("OwnAlone", compute=lambda self, x: x)
    try:
        x = tensor(3)
        assert trace(lambda x: cls()(x), x).fingerprint() is None

        def step(state, row):
            state = cls()(state) + row
            return state, state

        assert trace(lambda x: ndl.scan(step, x[0], x), tensor(3, 2)).fingerprint() is None
    finally:
        del REGISTRY["own_alone"]


def test_a_replaced_rule_or_an_attribute_without_an_exact_text_leaves_none(monkeypatch):
    class Seven(int):
        pass

    def times(number):
        return trace(lambda x: ops.scalar.MulScalar(number)(x), tensor(2)).fingerprint()

    assert None is not times(7) != times(7.0) is not None
    assert times(Seven(7)) is None
    monkeypatch.setattr(ops.scalar.MulScalar, "compute", lambda self, x: x)
    assert times(7) is None


def test_a_rule_replaced_in_a_base_class_leaves_none(monkeypatch):
    x = tensor(2)
    assert trace(ops.exp, x).fingerprint() is not None
    assert issubclass(REGISTRY["exp"], Elementwise)
    monkeypatch.setattr(Elementwise, "infer", lambda self, *specs: specs[0])
    assert trace(ops.exp, x).fingerprint() is None


def test_needles_own_ops_have_one():
    known = graph._Known()
    assert [cls for cls in REGISTRY.values() if cls.__module__.startswith("needle.")]
    wrong = [
        name
        for name, cls in REGISTRY.items()
        if cls.__module__.startswith("needle.") and not known._class(cls)
    ]
    assert wrong == []


def test_a_program_is_followed_whoever_runs_it(monkeypatch):
    file = "/venv/lib/python3/site-packages/profiler/__main__.py"
    monkeypatch.setattr(sys.modules["__main__"], "__file__", file, raising=False)
    assert not library_code.is_known("__main__")


def test_what_is_installed_is_not_followed():
    told = [np.ones, np.dtype, dataclasses.dataclass, pytest.raises, nn.Linear, trace]
    assert all(map(library_code.is_told, told)) and not library_code.is_told(tensor)
    assert (
        library_code.is_known("pytest")
        and library_code.is_known("json")
        and library_code.is_known("sys")
    )
    assert not library_code.is_known(__name__) and not library_code.is_known(None)
    made = dataclasses.make_dataclass("Made", ["x"])
    assert not library_code.is_told(made)  # whatever module made it
