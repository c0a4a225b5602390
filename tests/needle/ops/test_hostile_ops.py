"""Every function of needle.ops, given arguments of any kind, returns a result or raises an error
that says why; tracing agrees with computing."""

import inspect
import random

import numpy as np
import pytest

import needle as ndl
from needle import backend_ndarray as nd
from needle import ops
from needle.errors import TraceError
from needle.trace import Graph, trace

FUNCTIONS = sorted(
    name for name in ops.__all__ if name.islower() and name not in ("register", "make_tuple")
)
EXPECTED = (TypeError, ValueError, IndexError, OverflowError, MemoryError)
CALLS = 150


class Arguments:
    """Draws arguments for a function: mostly tensors where a tensor is expected, small numbers."""

    def __init__(self, seed):
        self.rng = random.Random(seed)

    def tensor(self):
        pick = self.rng.choice
        shape = tuple(pick([0, 1, 2, 3, 4]) for _ in range(pick([0, 1, 2, 2, 3, 4, 5])))
        if self.rng.random() < 0.3:
            shape = pick([(2, 3), (3, 3), (2, 3, 4, 4), (3, 3, 3, 2)])
        dtype = pick((*nd.DTYPES, "float32", "float64", "int64"))
        device = pick([ndl.cpu(), ndl.cpu(), ndl.cpu(), ndl.cpu_numpy()])
        return ndl.Tensor(np.ones(shape), dtype=dtype, device=device)

    def integer(self):
        huge = (17, 2**62, 2**63, -(2**63), 2**200)
        return self.rng.choice([0, 1, 2, 3, -1, -2, 1, 2, True, np.int64(2), *huge])

    def several(self):
        pick, count = self.rng.choice, self.rng.randrange(5)
        return pick([
            lambda: tuple(self.integer() for _ in range(count)),
            lambda: tuple(pick([0, 1, 2, 3, -1]) for _ in range(count)),
            lambda: tuple((pick([0, 1, 2]), pick([0, 1, -1, 2**62])) for _ in range(count)),
            lambda: tuple(self.other() for _ in range(count)),
            lambda: [self.tensor() for _ in range(count)],
            lambda: [self.tensor()] * count,
        ])()  # fmt: skip

    def other(self):
        return self.rng.choice([
            1.5, -1.5, 0.0, float("nan"), float("inf"), None, "x", b"xyz", "float32", "add",
            "complex64", object(), 1j, {}, Ellipsis, slice(None), slice(2**70, None, -1),
            slice(None, None, 0), slice("a"), [], (), [1, [2]], np.zeros(2), np.array([1, 0]),
            [True, False], nd.zeros((2,)), ndl.Tensor([1.0]), ndl.cpu(), type,
        ])  # fmt: skip

    def any(self, first):
        kinds = [self.tensor, self.integer, self.several, self.other]
        return self.rng.choices(kinds, (60, 3, 3, 3) if first else (5, 6, 5, 3))[0]()

    def call(self, function):
        """Positional and keyword arguments that the function's signature takes."""
        args, kwargs = [], {}
        for i, p in enumerate(inspect.signature(function).parameters.values()):
            if p.kind is p.VAR_POSITIONAL:
                args += [self.any(True) for _ in range(self.rng.randrange(3))]
            elif p.default is p.empty:
                args.append(self.any(i == 0 or "Tensor" in str(p.annotation)))
            elif self.rng.random() < 0.5:
                kwargs[p.name] = self.any(False)
        return args, kwargs


def outcome(run):
    """Shapes and dtypes of the results, or a clear error; any other error is raised."""
    try:
        out = run()
    except EXPECTED as error:
        text = str(error)
        assert text and "incompatible function arguments" not in text, text
        return error
    if isinstance(out, Graph):
        specs = [spec for node in out.outputs for spec in node.specs]
    else:
        parts = out if isinstance(out, (tuple, list, ndl.TensorTuple)) else [out]
        specs = [part.spec for part in parts]
    return [(spec.shape, spec.dtype) for spec in specs]


def only_computing_knows(eager, traced):
    """Whether an index's value or an amount of memory can explain a difference."""
    if isinstance(eager, (IndexError, MemoryError, OverflowError)):
        return True
    return isinstance(traced, list) and any(n > 2**40 for shape, _ in traced for n in shape)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_any_arguments(name):
    function, draw = getattr(ops, name), Arguments(name)
    for _ in range(CALLS):
        args, kwargs = draw.call(function)

        def call(args=args, kwargs=kwargs):
            return function(*args, **kwargs)

        eager = outcome(call)
        try:
            traced = outcome(lambda call=call: trace(call))
        except TraceError:
            continue  # the function reads a value, which only exists when computing
        if only_computing_knows(eager, traced):
            continue
        same = isinstance(traced, Exception) if isinstance(eager, Exception) else traced == eager
        assert same, (name, args, kwargs, eager, traced)
