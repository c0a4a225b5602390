"""Graph.fingerprint is equal for equal programs and differs for any other."""

import dataclasses
import subprocess
import sys

import numpy as np

import needle as ndl
from needle import nn
from needle.op import REGISTRY, Elementwise, register
from needle.trace import trace


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


def test_fingerprint_follows_an_edited_rule():
    class Twice(Elementwise):
        """y = 2 x."""

        def compute(self, x):
            return x + x

        def emit_te(self, k, x):
            return k.topi.add(x, x)

    cls = register(Twice)
    try:
        before = trace(lambda x: cls()(x), tensor(2)).fingerprint()
        assert trace(lambda x: cls()(x), tensor(2)).fingerprint() == before
        cls.emit_te = lambda self, k, x: k.topi.multiply(x, 2)
        assert trace(lambda x: cls()(x), tensor(2)).fingerprint() != before
    finally:
        del REGISTRY["twice"]
    assert dataclasses.is_dataclass(cls)
