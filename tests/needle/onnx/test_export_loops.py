"""Models with scan, while_loop and cond as ONNX: right in ONNX Runtime, and when they come back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import needle as ndl
import needle.onnx
from needle import nn
from needle.errors import UnsupportedError
from tests.needle.onnx.peers import assert_same

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

X = np.random.default_rng(0).normal(size=(6, 2, 3)).astype("float32")
H = np.random.default_rng(1).normal(size=(2, 3)).astype("float32")


class Peephole(nn.Module):
    """An LSTM whose gates see the cell, from the last step to the first."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.recur = nn.Linear(3, 12), nn.Linear(3, 12, bias=False)
        self.peep = nn.Parameter(ndl.Tensor(np.full((3, 3), 0.3, "float32")))

    def forward(self, h: Any, x: Any) -> Any:
        def cell(state: Any, x: Any) -> Any:
            h, c = state
            i, f, g, o = ndl.ops.split((self.project(x) + self.recur(h)).reshape((-1, 4, 3)), 1)
            i = ndl.sigmoid(i + self.peep[0] * c)
            f = ndl.sigmoid(f + self.peep[1] * c)
            c = f * c + i * ndl.tanh(g)
            h = ndl.sigmoid(o + self.peep[2] * c) * ndl.tanh(c)
            return (h, c), {"h": h, "gate": i}

        (h, _), made = ndl.scan(cell, (h, h * 0.5), x, reverse=True)
        return h, made["h"], made["gate"]


def counted(h: Any, x: Any) -> Any:
    """Steps without a sequence."""
    return ndl.scan(lambda s, _: (s * 1.1, s.sum()), h, None, length=5)


def nested(h: Any, x: Any) -> Any:
    def cell(h: Any, x: Any) -> Any:
        last, sums = ndl.scan(lambda s, v: (ndl.tanh(s + v), s), h[0], x)
        return h + last, sums

    return ndl.scan(cell, h, x)


def doubled(h: Any, x: Any) -> Any:
    """The state of a while_loop and what it reads from around it."""
    most = x.abs().sum() * 3
    return ndl.while_loop(
        lambda s: s[1].abs().sum() < most, lambda s: (s[0] + 1, s[1] * 1.5), (0, h)
    )


def chosen(h: Any, x: Any) -> Any:
    return ndl.cond(h.sum() > 0, lambda h: (h + 1, x.sum(0)), lambda h: (h * x[0], h - 1), h)


def looped_choice(h: Any, x: Any) -> Any:
    def cell(h: Any, x: Any) -> Any:
        h = ndl.cond(x.sum() > 0, lambda: h + x, lambda: h * 0.5)
        return h, h

    return ndl.scan(cell, h, x)


MODELS: dict[str, Callable[..., Any]] = {
    "peephole": Peephole().eval(),
    "counted": counted,
    "nested": nested,
    "doubled": doubled,
    "chosen": chosen,
    "looped choice": looped_choice,
}


def flat(value: Any) -> list[np.ndarray]:
    if isinstance(value, (tuple, list)):
        return [each for part in value for each in flat(part)]
    return [value.numpy()]


def by_runtime(path: Path, *arrays: np.ndarray) -> list[np.ndarray]:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    given = dict(zip(["h", "x"], arrays, strict=True))
    found: list[np.ndarray] = session.run(None, {name: given[name] for name in names})
    return found


def given_to(path: Path, *arrays: np.ndarray) -> list[np.ndarray]:
    """The arrays that a file takes: a model need not read all."""
    names = [each.name for each in onnx.load(path).graph.input]
    return [a for name, a in zip(["h", "x"], arrays, strict=True) if name in names]


@pytest.mark.parametrize("name", MODELS)
def test_loops_go_out_and_come_back(name: str, tmp_path: Path) -> None:
    model, path = MODELS[name], tmp_path / "model.onnx"
    ndl.onnx.export(model, (X[0] * 0 + H, X), path)
    for sign in (1, -1):
        arrays = H * sign, X * sign
        with ndl.no_grad():
            expected = flat(model(*map(ndl.Tensor, arrays)))
            again = needle.onnx.load(path)(*map(ndl.Tensor, given_to(path, *arrays)))
        assert_same(by_runtime(path, *arrays), expected)
        assert_same(flat(again), expected)


@pytest.mark.parametrize("name", ["peephole", "nested", "looped choice"])
def test_any_number_of_steps_and_rows(name: str, tmp_path: Path) -> None:
    model, path = MODELS[name], tmp_path / "model.onnx"
    n = ndl.Dim("n", min=1, max=50)
    rows = ndl.Dim("rows", min=1, max=50)
    dims = {"h": {0: rows}, "x": {0: n, 1: rows}}
    ndl.onnx.export(model, (H, X), path, dims=dims)
    for steps, count in ((1, 1), (6, 2), (3, 1)):
        arrays = H[:count], X[:steps, :count]
        with ndl.no_grad():
            expected = flat(model(*map(ndl.Tensor, arrays)))
        assert_same(by_runtime(path, *arrays), expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_what_comes_back_compiles(name: str, tmp_path: Path) -> None:
    needle_tvm = pytest.importorskip("needle_tvm")
    model, path = MODELS[name], tmp_path / "model.onnx"
    ndl.onnx.export(model, (H, X), path)
    run = needle_tvm.compile_onnx(path, *given_to(path, H, X), stage="fused", progress=False)
    for sign in (1, -1):
        arrays = H * sign, X * sign
        found = run(*given_to(path, *arrays))
        assert_same(flat(found), by_runtime(path, *arrays))


def test_only_what_is_read_goes_out(tmp_path: Path) -> None:
    """Not what a gradient would read, which a trace keeps."""
    ndl.onnx.export(lambda h, x: MODELS["peephole"](h, x)[1], (H, X), tmp_path / "model.onnx")
    (scan,) = (n for n in onnx.load(tmp_path / "model.onnx").graph.node if n.op_type == "Scan")
    assert len(scan.output) == 2 + 1


def test_ops_without_a_rule_are_named_in_bodies(tmp_path: Path) -> None:
    def model(h: Any, x: Any) -> Any:
        def cell(h: Any, x: Any) -> Any:
            return h, ndl.ops.bitcast(h + x)

        return ndl.scan(cell, h, x)

    with pytest.raises(UnsupportedError, match="these ops have no ONNX form: bitcast"):
        ndl.onnx.export(model, (H, X), tmp_path / "model.onnx")
