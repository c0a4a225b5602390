"""The gate rejects every planted fault and passes right results. Compiled faults and the float64
reference are in test_gate_compiled.py."""

import ctypes
import json
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from needle_runtime.artifact.tolerance import accumulated_tolerance
from needle_tvm.errors import TuningError
from needle_tvm.tune.gate import gate as gating
from needle_tvm.tune.gate.gate import Expected, Gate, Guarded, Parameter, Writer
from tests.needle_tvm.conftest import make_mlp, tensor
from tests.needle_tvm.tune.gate.gating import compiled, functions

SEEDS = range(20)


@pytest.fixture(scope="module")
def layer(tmp_path_factory):
    """relu(x @ w + b) of 4x32 and 32x48, its gate, and a right candidate."""
    x = tensor(np.zeros((4, 32), np.float32))
    (module,) = functions(make_mlp(32, 48), x).values()
    return compiled(module, tmp_path_factory.mktemp("layer"), "layer")


def beyond(array, offset):
    """The memory around an array, seen from its first byte."""
    start = array.ctypes.data + int(offset)
    return np.frombuffer((ctypes.c_uint8 * 4).from_address(start), np.uint8)


def one_wrong_element(inputs, output, rng):
    at = rng.integers(output.size)
    output.flat[at] += 1e-3 * np.abs(output).max()


def missed_tail(inputs, output, rng):
    output.reshape(-1)[output.size - rng.integers(1, 8) :] = np.nan


def never_written_tail(inputs, output, rng):
    output.reshape(-1)[-1] = Guarded((1,), "float32").array[0]


def dropped_nan(inputs, output, rng):
    np.copyto(output, 0, where=np.isnan(output))


def epilogue_off(inputs, output, rng):
    output += np.float32(1e-3)


def scaled(inputs, output, rng):
    output *= np.float32(1.001)


def written_past_the_end(inputs, output, rng):
    beyond(output, output.nbytes + 4 * rng.integers(1000))[:] = 0


def written_before_the_start(inputs, output, rng):
    beyond(output, -4 * rng.integers(1, 1000))[:] = 0


def changed_input(inputs, output, rng):
    array = inputs[rng.integers(len(inputs))]
    array.flat[rng.integers(array.size)] = 0.125


def changed_zero(inputs, output, rng):
    for array in inputs:
        array += np.float32(0)  # turns -0.0 into 0.0


def nothing_but_nan(inputs, output, rng):
    output[...] = np.nan


def sign_of_infinity(inputs, output, rng):
    if np.isinf(output).any():
        output[np.isinf(output)] *= -1


def infinity_for_nan(inputs, output, rng):
    output[np.isnan(output)] = np.inf


def half_precision(inputs, output, rng):
    with np.errstate(over="ignore"):
        output[...] = output.astype(np.float16)


def saturated(inputs, output, rng):
    np.minimum(output, 1e30, out=output)


def flushed(inputs, output, rng):
    output[np.abs(output) < 1e-12] = 0


FAULTS = [
    one_wrong_element,
    missed_tail,
    never_written_tail,
    dropped_nan,
    epilogue_off,
    scaled,
    written_past_the_end,
    written_before_the_start,
    changed_input,
    changed_zero,
    nothing_but_nan,
    sign_of_infinity,
    infinity_for_nan,
    half_precision,
    saturated,
    flushed,
]


def test_what_is_right_passes(layer):
    verdict = layer.gate.check(layer.call)
    assert verdict.passed and 0 < verdict.difference < layer.facts["tolerance"] < 1e-4
    assert layer.facts["reference"] == "float64" and layer.facts["left_out"] == {}
    assert layer.facts["cases"] == ["ordinary", "special", "tiny", "large", "zeros"]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_planted_fault_is_rejected(layer, fault):
    """All of 20 are rejected, each at another position."""
    for seed in SEEDS:
        rng = np.random.default_rng(seed)

        def call(inputs, outputs, rng=rng):
            layer.call(inputs, outputs)
            fault(inputs, outputs[0], rng)

        verdict = layer.gate.check(call)
        assert not verdict.passed, seed
        assert "\n" not in verdict.wrong
        assert verdict.difference > layer.facts["tolerance"] or "never written" in verdict.wrong


def test_a_reason_names_the_fault(layer):
    def reason(fault):
        def call(inputs, outputs):
            layer.call(inputs, outputs)
            fault(inputs, outputs[0], np.random.default_rng(0))

        return layer.gate.check(call).wrong

    assert reason(written_past_the_end) == "ordinary: output 0: memory outside of it was written"
    assert "was changed" in reason(changed_input)
    assert "output 0 at [3, 47]: was never written; 1 of 192" in reason(never_written_tail)
    assert reason(dropped_nan).startswith("special: output 0: ")
    assert " 0, expected nan within" in reason(dropped_nan)
    assert "of 192 elements differ; at [" in reason(scaled)


def test_an_accumulator_that_is_not_initialised_is_rejected(layer):
    """Results are added to old memory and are right only if that happens to be zero."""

    def call(inputs, outputs):
        fresh = [each.array for each in layer.gate.outputs()]
        layer.call(inputs, fresh)
        outputs[0] += fresh[0]

    assert not layer.gate.check(call).passed


def test_a_result_that_is_right_only_the_first_time_is_rejected(layer):
    """A race, or a buffer that is kept, could cause this."""
    seen = []

    def call(inputs, outputs):
        layer.call(inputs, outputs)
        if seen.count(inputs[0].tobytes()):
            outputs[0][0, 0] += 1
        seen.append(inputs[0].tobytes())

    assert layer.gate.check(call).wrong.startswith("ordinary: output 0: 1 of 192 elements")


def test_what_a_call_raises_passes_through(layer):
    def call(inputs, outputs):
        raise ZeroDivisionError("of the runner")

    with pytest.raises(ZeroDivisionError, match="of the runner"):
        layer.gate.check(call)


def test_arrays_are_aligned_and_files_stay_as_they_are(layer):
    files = {path: path.read_bytes() for path in layer.folder.iterdir()}

    def call(inputs, outputs):
        for array in (*inputs, *outputs):
            assert array.ctypes.data % 64 == 0 and array.flags.c_contiguous
            array[...] = 7

    assert not layer.gate.check(call).passed
    assert files == {path: path.read_bytes() for path in layer.folder.iterdir()}


@pytest.mark.parametrize("damage", ["absent", "cut", "other format", "array gone"])
def test_a_gate_that_cannot_be_read_is_named(layer, tmp_path, damage):
    for path in layer.folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    facts = tmp_path / "gate.json"
    if damage == "absent":
        facts.unlink()
    elif damage == "cut":
        facts.write_text(facts.read_text()[:-9])
    elif damage == "other format":
        facts.write_text(json.dumps({**json.loads(facts.read_text()), "format": 99}))
    else:
        (tmp_path / "ordinary.0.npy").write_bytes(b"")
    with pytest.raises(TuningError, match=r"gate\.json|ordinary\.0\.npy"):
        Gate.load(tmp_path).check(layer.call)


def test_checking_imports_no_compiler():
    code = "import sys, needle_tvm.tune.gate.gate; print({'tvm', 'needle'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# Arrays of every kind


@pytest.mark.parametrize("shape", [(), (0, 3), (1,), (5, 7)])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int8", "int64",
                                   "uint8", "bool"])  # fmt: skip
def test_every_dtype_and_shape(tmp_path, dtype, shape):
    """Outputs stand among the parameters; an output that is never written is always noticed."""
    kind = np.dtype(dtype)
    rng = np.random.default_rng(0)
    x = np.asarray(rng.integers(0, 2, shape)).astype(kind)
    parameters = [
        Parameter("a", shape, dtype, True),
        Parameter("x", shape, dtype, False),
        Parameter("b", shape, dtype, True),
    ]
    wide = x.astype(np.float64) if gating.is_float(dtype) else x
    writer = Writer(tmp_path, parameters)
    writer.add("ordinary", [x], [Expected(wide, 1.0, 1e-3), Expected(wide, 1.0, 1e-3)])
    writer.finish({})
    gate = Gate.load(tmp_path)
    assert gate.arguments(["x"], ["a", "b"]) == ["a", "x", "b"]

    def call(inputs, outputs, written=2):
        for output in outputs[:written]:
            output[...] = inputs[0]

    assert gate.check(call).passed
    for written in (0, 1):
        verdict = gate.check(lambda i, o, n=written: call(i, o, n))
        assert verdict.passed == (x.size == 0)
        if x.size:
            assert f"output {written}" in verdict.wrong and "never written" in verdict.wrong


def test_where_rounding_decides_either_answer_will_do():
    expected = Expected(np.array([3, 5]), 0.0, 0.0, (np.array([3, 6]),))
    for found, right in ([3, 5], [1, 1]), ([3, 6], [1, 1]), ([6, 5], [0, 1]), ([3, 3], [1, 0]):
        assert (~expected.compare(np.array(found)).wrong).tolist() == [bool(each) for each in right]


# The tolerance


def honest_sums(terms, rng):
    """Sums over the last axis of `terms` in its own dtype, sequentially and in pieces."""
    dtype = terms.dtype
    yield np.add.accumulate(terms, axis=-1, dtype=dtype)[..., -1]
    yield np.add.accumulate(terms[..., ::-1], axis=-1, dtype=dtype)[..., -1]
    pieces = int(rng.integers(1, 17))
    parts = [terms[..., i::pieces] for i in range(pieces) if i < terms.shape[-1]]
    total = np.zeros(terms.shape[:-1], dtype)
    for part in parts:
        total = (total + np.add.accumulate(part, axis=-1, dtype=dtype)[..., -1]).astype(dtype)
    yield total


@settings(max_examples=40, deadline=None)
@given(
    result=st.sampled_from(["float16", "bfloat16", "float32"]),
    in_float32=st.booleans(),
    length=st.one_of(st.integers(1, 300), st.sampled_from([1000, 10_000, 100_000])),
    seed=st.integers(0, 2**31),
)
def test_honest_sums_pass_and_wrong_ones_do_not(result, in_float32, length, seed):
    """Products of rounded values, summed in the result's dtype or in float32, in any order."""
    rng = np.random.default_rng(seed)
    dtype = np.dtype(result)
    x, w = (rng.standard_normal((16, length)).astype(dtype) for _ in range(2))
    values = (x.astype(np.float64) * w.astype(np.float64)).sum(axis=-1)
    accumulator = np.dtype(np.float32) if in_float32 else dtype
    tolerance = accumulated_tolerance([result], [(accumulator.name, length)])
    scale = float(np.abs(values).max())
    expected = Expected(values, scale, tolerance)
    terms = x.astype(accumulator) * w.astype(accumulator)
    for total in honest_sums(terms.astype(accumulator), rng):
        compared = expected.compare(total.astype(dtype))
        assert compared.right, compared.relative / tolerance
    wrong = np.array(values)
    wrong[rng.integers(16)] += 4 * tolerance * scale
    stored = wrong.astype(dtype)
    compared = expected.compare(stored)
    assert compared.wrong.sum() == 1 and compared.relative > tolerance


def test_the_tolerance_follows_the_accumulator():
    halves = [accumulated_tolerance(["float16"], [(a, 4096)]) for a in ("float16", "float32")]
    assert halves[0] > 30 * halves[1]
    assert halves[1] < 1.1 * 8 * float(ml_dtypes.finfo("float16").eps)
    assert accumulated_tolerance(["int32", "bool"], [("int64", 100)]) == 0
    one, two = ([("float32", 100)] * count for count in (1, 2))
    assert accumulated_tolerance(["float32"], one) < accumulated_tolerance(["float32"], two)
