"""Samples of ops as one function, exported, run by ONNX Runtime, read again by needle, and compared
with the eager one."""

import zlib

import numpy as np

import needle as ndl
import needle.onnx
from needle.backend_ndarray.dtypes import is_floating, is_half
from needle.ops import REGISTRY
from needle.testing import assert_close, examples
from needle.trace.graph import flatten_outputs

OWN = sorted(name for name, op in REGISTRY.items() if op.__module__.startswith("needle."))

# Ops whose ONNX operator has no kernel of float64 in ONNX Runtime, nor others to be made of: ONNX's
# own reference runs these, also of integers, which needle computes in float64.
NO_FLOAT64 = {"acos", "asin", "atan", "atan2", "erf", "erfinv", "gelu"}


class Case:
    """One sample of an op in one dtype. Halves go in and out as float32, which NumPy knows."""

    def __init__(self, op, number, sample, dtype):
        self.op, self.dtype = op, dtype
        rng = np.random.default_rng(zlib.crc32(f"{op.name} {number} {dtype}".encode()))
        self.arrays = [examples.draw(arg, dtype, rng) for arg in sample.inputs]
        self.what = f"{op!r} on sample {number} ({dtype})"

    def applies(self):
        try:
            specs = [examples.spec(a, None) for a in self.arrays]
            self.op.infer(*specs)
            self.length = self.op.reduction_length(*specs)
        except (TypeError, ValueError, OverflowError):
            return False
        return True

    @property
    def in_reference(self):
        wide = not is_floating(self.dtype) or self.dtype == "float64"
        return self.op.name in NO_FLOAT64 and wide

    def inputs(self):
        return [
            a.astype("float32") if is_half(a.dtype.name) else a for a in examples.flat(self.arrays)
        ]

    def __call__(self, *given):
        rest = iter(given)

        def one(array):
            x = next(rest)
            return x.astype(array.dtype.name) if is_half(array.dtype.name) else x

        made = [
            ndl.ops.make_tuple(*map(one, a)) if isinstance(a, tuple) else one(a)
            for a in self.arrays
        ]
        out = self.op(*made)
        parts = list(out) if isinstance(out, ndl.TensorTuple) else [out]
        return [p.astype("float32") if is_half(p.dtype) else p for p in parts]

    def compare(self, got, expected):
        flat = [examples.widened(a) for a in examples.flat(self.arrays)]
        scale = min(1.0, max((examples.largest(a) for a in flat), default=0.0))
        if self.length > 1:
            scale = max([scale, *(examples.largest(a, "i") for a in flat)])
        rtol = None
        for a, b in zip(got, expected, strict=True):
            if self.in_reference and self.op.name in ("erf", "erfinv", "gelu"):
                rtol = 1e-6  # ONNX's reference computes erf in float32
            elif is_half(self.dtype) and a.dtype == np.float32:
                rtol = 2 * float(ndl.backend_ndarray.dtypes.finfo(self.dtype).eps) + 3e-5
            assert_close(a, b, self.length, scale, rtol, what=self.what)


def cases(name, dtypes):
    op_class = REGISTRY[name]
    for number, sample in enumerate(op_class.samples):
        for dtype in dtypes:
            case = Case(op_class(**sample.attributes), number, sample, dtype)
            if case.applies():
                yield case


def run(path, feeds, reference=False):
    """The outputs of a file for arrays in the order of its inputs."""
    if reference:
        from onnx.reference import ReferenceEvaluator

        session = ReferenceEvaluator(str(path))
        names = session.input_names
    else:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = 1
        session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        names = [spec.name for spec in session.get_inputs()]
    return session.run(None, dict(zip(names, feeds, strict=True)))


def loaded(path, feeds):
    """The outputs of a file that needle reads, for arrays in the order of its inputs."""
    with ndl.no_grad():
        _, outputs = flatten_outputs(ndl.onnx.load(path)(*map(ndl.Tensor, feeds)))
    return [value.numpy() for _, value in outputs]


def check(path, chosen, reference=False, **choices):
    """All cases in one file."""
    counts = [len(case.inputs()) for case in chosen]

    def everything(*xs):
        out, at = [], 0
        for case, count in zip(chosen, counts, strict=True):
            out.append(case(*xs[at : at + count]))
            at += count
        return out

    feeds = [x for case in chosen for x in case.inputs()]
    ndl.onnx.export(everything, tuple(feeds), path, **choices)
    runs = [iter(run(path, feeds, reference)), iter(loaded(path, feeds))]
    for case in chosen:
        with np.errstate(all="ignore"), ndl.no_grad():
            expected = [part.numpy() for part in case(*map(ndl.Tensor, case.inputs()))]
        for got in runs:
            case.compare([next(got) for _ in expected], expected)
