"""The steps of LSTMs on packed weights: which are taken, and what they become."""

import pytest

from needle import ops
from needle_tvm._tvm.names import OP_PATTERN, relax, te, transform
from needle_tvm.kernels.mark import SCHEDULED
from needle_tvm.kernels.recurrence import gpu
from needle_tvm.kernels.recurrence.cpu import GATES, lstm_steps, pack_gates, steps_tile
from needle_tvm.kernels.recurrence.pack_recurrence import pack_recurrence
from tests.needle_tvm.modules import (
    AVX512,
    SM_90,
    Spec,
    check_becomes,
    check_stays,
    emit,
    kernel,
    needle_module,
    relax_module,
)

BATCH, HIDDEN = 2, 5


def specs(dtype="float32", batch=BATCH):
    shapes = ((3, batch, 4 * HIDDEN), (batch, HIDDEN), (batch, HIDDEN), (HIDDEN, 4 * HIDDEN))
    return [Spec(*shape, dtype=dtype) for shape in shapes]


def sequence(*numbers, types):
    """A module that gives some of the results of an LSTM's steps; the weight is a parameter."""

    def function(*inputs):
        results = ops.lstm_sequence(*inputs)
        return tuple(results[number] for number in numbers)

    return transform.DeadCodeElimination()(needle_module(function, *types, params=1))


def packed(*numbers, types, target, with_sums):
    def function(x, h, c, w):
        if target is SM_90:
            threads = gpu.steps_threads(BATCH, HIDDEN, GATES)
            units, marks = threads.units, {SCHEDULED: True}

            def steps(*tensors):
                return gpu.lstm_steps(tensors, threads=threads, with_sums=with_sums)
        else:
            tile = steps_tile(BATCH, HIDDEN, types[0].dtype, target, GATES)
            units, marks = tile.units, {}

            def steps(*tensors):
                return lstm_steps(tensors, [tile], with_sums=with_sums)

        panels = kernel(
            lambda w: pack_gates(w, units), w, name="pack_gates", op_pattern=OP_PATTERN.opaque
        )
        results = kernel(
            steps, x, h, c, panels, name="lstm_steps", op_pattern=OP_PATTERN.opaque, **marks
        )
        given = tuple(emit(relax.TupleGetItem(results, number)) for number in numbers)
        return given if len(given) > 1 else given[0]

    return relax_module(function, *types, params=1)


@pytest.mark.parametrize("target", [AVX512, SM_90], ids=["cpu", "gpu"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("numbers", [(0,), (1,), (2,), (0, 1, 2)], ids=str)
def test_sums_are_written_where_they_are_read(numbers, dtype, target):
    types = specs(dtype)
    before = sequence(*numbers, types=types)
    expected = packed(*numbers, types=types, target=target, with_sums=2 in numbers)
    check_becomes(pack_recurrence, before, expected, target)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_stay(dtype):
    check_stays(pack_recurrence, sequence(0, types=specs(dtype)))


def test_no_rows_are_nothing_to_pack():
    check_stays(pack_recurrence, sequence(0, types=specs(batch=0)))


def test_other_kernels_stay():
    def doubled(x):
        return te.compute(x.shape, lambda *i: x(*i) + x(*i))

    check_stays(
        pack_recurrence,
        relax_module(lambda x: relax.op.exp(kernel(doubled, x, name="doubled")), Spec(3)),
    )


@pytest.mark.parametrize("target", [AVX512, SM_90], ids=["cpu", "gpu"])
@pytest.mark.parametrize("with_sums", [False, True])
def test_grus_are_packed_and_write_their_sums_where_they_are_read(with_sums, target):
    def function(*inputs):
        hidden, sums = ops.gru_sequence(*inputs)
        return (hidden, sums) if with_sums else hidden

    shapes = ((3, BATCH, 3 * HIDDEN), (BATCH, HIDDEN), (HIDDEN, 3 * HIDDEN), (3 * HIDDEN,))
    module = needle_module(function, *(Spec(*shape) for shape in shapes))
    module = pack_recurrence(transform.DeadCodeElimination()(module), target)
    steps = next(f for name, f in module.functions_items() if name.name_hint == "gru_steps")
    assert len(steps.params) == 5 + with_sums  # the state is always written
