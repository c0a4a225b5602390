"""The frozen programs, compiled, give the results that are stored beside them.

`reading` says what is stored, `make` how it was made. A front end or a pass that is rewritten
together with its tests still has these programs to satisfy, of which needle computes no answer.
"""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext

import numpy as np
import pytest

pytest.importorskip("tvm")
pytest.importorskip("onnx")
pytest.importorskip("torch")

import needle as ndl
import needle_tvm
from needle import ops
from needle.backend_ndarray.dtypes import DTYPES
from needle.torch.arrays import tensor_of
from needle_tvm.check.campaign.judge import own_cache
from needle_tvm.check.campaign.program import Program
from needle_tvm.lower.libraries import unoptimized

from .reading import ONNX, PT2, SOURCE, archives, programs
from .recurrences import GONE

onnx, torch = pytest.importorskip("onnx"), pytest.importorskip("torch")

ARCHIVES = archives()


@pytest.fixture(autouse=True)
def ops_that_are_gone(monkeypatch):
    """The programs' text names them."""
    for name, function in GONE.items():
        monkeypatch.setattr(ops, name, function, raising=False)


@pytest.mark.parametrize("archive", ARCHIVES[:4], ids=lambda path: path.name)
def test_sixty_programs(archive, tmp_path):
    """Tuned."""
    assert_right(archive, tmp_path, lambda i: ["tuned"])


@pytest.mark.slow
@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name)
def test_every_program(archive, tmp_path):
    """Tuned; each third one at another stage as well."""
    tuned = [] if archive in ARCHIVES[:4] else ["tuned"]  # those of the test above
    others = {0: ["noopt"], 3: ["fused"]}
    assert_right(archive, tmp_path, lambda i: tuned + others.get(i % 6, []))


def assert_right(archive, folder, stages_of):
    """Each program of an archive is right, eager and at the stages that its number has."""
    with own_cache():
        lines = [
            line
            for i, stored in enumerate(programs(archive))
            for line in faults(stored, folder, stages_of(i))
        ]
    assert not lines, "\n".join(lines)


def test_the_corpus_has_every_kind_door_and_dtype():
    """And no more than 6 MB; of the elements of its results nearly all are compared."""
    assert sum(path.stat().st_size for path in ARCHIVES) <= 6_000_000
    found, compared = Counter(), []
    for stored in (each for path in ARCHIVES for each in programs(path)):
        found[stored.kind] += 1
        found["recurrence"] += recurs(stored)
        found.update({*stored.fields["inputs"], *stored.fields["outputs"]})
        found.update(name for name in (ONNX, PT2, SOURCE) if name in stored.files)
        compared += [np.isfinite(e).mean() for c in stored.cases for e in c.errors if e.size]
    kinds = {"ops", "gradient", "dims", "onnx", "torch"}
    assert sum(found[kind] for kind in kinds) == 600
    wanted = {*kinds, ONNX, PT2, SOURCE, "recurrence", *DTYPES}
    assert {name for name in wanted if found[name] < 3} == set(), found
    assert np.mean(compared) > 0.98


RECURRENT = {"Scan", "Loop", "LSTM", "GRU", "RNN", "CumSum"}


def recurs(stored):
    """Whether a program has a recurrence of any length."""
    if PT2 in stored.files:
        return any(name in stored.files[PT2] for name in (b".lstm", b".gru", b"cum", b".rnn"))
    return any(n.op_type in RECURRENT for n in onnx.load_from_string(stored.files[ONNX]).graph.node)


def test_a_wrong_element_is_seen():
    """Beyond its bound, whichever it is; the stored results themselves are right."""
    rng = np.random.default_rng(0)
    for stored in programs(ARCHIVES[0]):
        case = stored.cases[0]
        dtypes = [result.dtype.name for result in case.results]
        assert case.wrong(case.results, dtypes) is None
        for i, (result, error) in enumerate(zip(case.results, case.errors, strict=True)):
            compared = np.argwhere(np.isfinite(error) & ~np.isnan(result))
            if not len(compared):
                continue
            at, changed = tuple(rng.choice(compared)), [x.copy() for x in case.results]
            off = 1.01 * error[at] + 1e-9 * max(1.0, abs(float(result[at])))
            changed[i][at] = ~result[at] if result.dtype == bool else result[at] + max(1, off)
            if result.dtype.kind == "f":
                changed[i][at] = 0.0 if np.isinf(result[at]) else result[at] + off
            assert case.wrong(changed, dtypes), (stored.name, i, at)


def faults(stored, folder, stages):
    """What is wrong with a program, eager and at these stages, a line for each."""
    eager, compiled = opened(stored, folder)
    # Gradients add up in a model that is called again.
    made = [("eager", lambda: lambda *x: eager()(*x))] if eager is not None else []
    made += [(stage, lambda stage=stage: compiled(stage)) for stage in stages]
    optimized = stored.seed % 6 == 0  # by LLVM, which takes most of the time
    lines = []
    for where, make in made:
        try:
            with nullcontext() if optimized and where == "tuned" else unoptimized():
                function = make()
            wrong = wrong_results(stored, function)
        except Exception as error:  # any exception is a fault of the program that it comes from
            wrong = f"{type(error).__name__}: {error}"
        if wrong is not None:
            lines.append(f"{stored.name}, {where}: {wrong}")
    return lines


def wrong_results(stored, function):
    convert = tensor_of if PT2 in stored.files else ndl.Tensor
    for case in stored.cases:
        found = function(*map(convert, case.inputs))
        leaves = torch.utils._pytree.tree_leaves(found)  # nested as the PyTorch module's are
        arrays = [each.numpy() for each in leaves if isinstance(each, ndl.Tensor)]
        wrong = case.wrong(arrays, stored.fields["outputs"])
        if wrong:
            return wrong
    return None


def opened(stored, folder):
    """What makes a program's needle module, None for one of PyTorch's, and what compiles it."""
    inputs = stored.cases[0].inputs
    if PT2 in stored.files:
        path = folder / PT2
        path.write_bytes(stored.files[PT2])
        tensors = list(map(tensor_of, inputs))
        return None, lambda stage: needle_tvm.compile_torch(path, *tensors, stage=stage, threads=1)
    proto, dims = onnx.load_from_string(stored.files[ONNX]), dims_of(stored) or None
    if SOURCE not in stored.files:
        return lambda: ndl.onnx.load(proto), lambda stage: needle_tvm.compile_onnx(
            proto, *inputs, dims=dims, stage=stage, threads=1
        )
    program = Program.from_json(stored.files[SOURCE].decode())
    tensors = list(map(ndl.Tensor, inputs))
    return lambda: program.load()[0], lambda stage: needle_tvm.compile(
        program.load()[0], *tensors, dims=dims, stage=stage, threads=1
    )


def dims_of(stored):
    """The axes that dims leave open, as `compile` takes them."""
    sizes = {
        name: ndl.Dim(name, min=low, max=high, multiple_of=multiple)
        for name, (low, high, multiple) in stored.fields.get("sizes", {}).items()
    }
    return {
        name: {int(axis): eval(text, dict(sizes)) for axis, text in axes.items()}
        for name, axes in stored.fields.get("axes", {}).items()
    }
