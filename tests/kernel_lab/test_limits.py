"""The probes do the work they claim, and limits and work give the right floor."""

import json

import numpy as np
import pytest

from kernel_lab import limits as roofline
from kernel_lab.limits import Limits
from needle_runtime.process.child import Child
from needle_tvm.errors import TuningError

LIMITS = Limits(2, 500.0, {1 << 18: 200.0, 1 << 22: 150.0, 1 << 26: 40.0})


def test_the_floor_is_the_longer_of_arithmetic_and_traffic():
    assert roofline.floor(LIMITS, 5e9, 1) == pytest.approx(0.01)
    assert roofline.floor(LIMITS, 1, 1 << 26) == pytest.approx((1 << 26) / 40e9)
    assert roofline.floor(LIMITS, 0, 0) == 0


@pytest.mark.parametrize(
    ("size", "rate"),
    [
        *((0, 200), (1 << 10, 200), (1 << 18, 200), ((1 << 20) - 1, 200)),
        *(((1 << 20) + 1, 150), ((1 << 24) - 1, 150), ((1 << 24) + 1, 40), (1 << 40, 40)),
    ],
)
def test_the_bandwidth_is_that_of_the_nearest_working_set(size, rate):
    assert LIMITS.bandwidth(size) == rate


def test_limits_travel_as_json():
    assert Limits.from_json(json.loads(json.dumps(LIMITS.to_json()))) == LIMITS


@pytest.mark.parametrize(
    "change",
    [
        {"gigaflops": 0},
        {"gigaflops": float("nan")},
        {"gigabytes": []},
        {"gigabytes": [[1, -1.0]]},
        {"gigabytes": [[0, 1.0]]},
        {"gigabytes": [[1]]},
        {"gigabytes": None},
        {"threads": "two"},
    ],
)
def test_limits_that_cannot_be_are_refused(change):
    with pytest.raises(ValueError):
        Limits.from_json({**LIMITS.to_json(), **change})
    with pytest.raises(ValueError, match="limits"):
        Limits.from_json({})


def answer(request, messages):
    """A service that answers one request, in a process that has not started a thread pool."""
    yield roofline.probe(request)


def probed(request, **environment):
    environment = {"TVM_NUM_THREADS": "2", **environment}
    with Child("probe", f"{__name__}:answer", request, timeout=120, environment=environment) as one:
        return one.receive("probe")


def test_the_probe_measures_the_threads_it_is_told():
    limits = Limits.from_json(probed({"threads": 2}))
    assert limits.threads == 2
    assert sorted(limits.gigabytes) == sorted(roofline.WORKING_SETS)
    # No processor of the last twenty years is outside these limits, however busy.
    assert 0.1 < limits.gigaflops < 1e6
    assert all(0.01 < rate < 1e5 for rate in limits.gigabytes.values())


@pytest.mark.parametrize("threads", [0, -1, 1.5, "2", None, True])
def test_the_probe_refuses_other_threads(threads):
    with pytest.raises(TuningError, match="threads="):
        roofline.probe({"threads": threads})


class TestCompiled:
    """The kernels' results, and TVM's estimates of known work."""

    @pytest.fixture(autouse=True)
    def tvm(self):
        pytest.importorskip("tvm", reason="needs the [tvm] extra")

    def run(self, probe, *inputs):
        from needle_runtime.memory import aligned_copy
        from needle_tvm._tvm.names import tvm
        from needle_tvm.target.spec import resolve

        target = resolve("cpu", 2).to_tvm()
        function = tvm.tirx.build(probe.module, target=target)["main"]
        output = aligned_copy(np.full(probe.shapes[-1], np.nan, np.float32))
        arrays = [aligned_copy(x.astype(np.float32)) for x in inputs]
        function(*(tvm.runtime.from_dlpack(x) for x in (*arrays, output)))
        return output

    @pytest.mark.parametrize("size", [1, 1000, 1 << 18, 1 << 22])
    def test_the_triad_does_every_pass_over_at_least_its_set(self, size):
        probe = roofline.triad(2, 16, size)
        rng = np.random.default_rng(0)
        b, c, s = (rng.standard_normal(shape) for shape in probe.shapes[:-1])
        found = self.run(probe, b, c, s)
        np.testing.assert_allclose(found, b + s[-1] * c, rtol=1e-5, atol=1e-5)
        arrays = 4 * 3 * found.size
        assert size <= arrays < size + 4 * 3 * 2 * 64 + 1
        assert probe.bytes == arrays * len(s) >= 1 << 22
        assert probe.flops == 2 * found.size * len(s)

    def test_the_chains_multiply_and_add_so_often(self):
        """With x = 0 the chains stay at one; with a small x they grow by a known factor a step."""
        probe = roofline.peak(2, 32, 16)
        assert probe.shapes == [(16,), (2, 16, 16)]
        np.testing.assert_array_equal(self.run(probe, np.zeros(16)), 1)
        x = np.full(16, 2.0**-16)
        steps = probe.flops / 2 / (2 * 16 * 16)
        expected = (1 + 2.0**-16) ** steps  # about e, so a chain that is cut short shows
        np.testing.assert_allclose(self.run(probe, x), expected, rtol=1e-3)

    def matmul(self, m, n, k, dtype="float32"):
        from needle_tvm._tvm.names import te

        a, b = te.placeholder((m, k), dtype), te.placeholder((k, n), dtype)
        axis = te.reduce_axis((0, k))
        c = te.compute((m, n), lambda i, j: te.sum(a[i, axis] * b[axis, j], axis=axis))
        return te.create_prim_func([a, b, c])

    @pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("float64", 8), ("float16", 2)])
    def test_work_of_a_product(self, dtype, size):
        flops, traffic = roofline.work(self.matmul(8, 32, 16, dtype))
        assert flops == 2 * 8 * 32 * 16
        assert traffic == size * (8 * 16 + 16 * 32 + 8 * 32)

    def test_temporaries_are_no_traffic(self):
        from needle_tvm._tvm.names import te

        a = te.placeholder((64, 64))
        b = te.compute((64, 64), lambda i, j: a[i, j] * 2.0)
        c = te.compute((64, 64), lambda i, j: b[i, j] + 1.0)
        assert roofline.work(te.create_prim_func([a, c])) == (2 * 64 * 64, 4 * 2 * 64 * 64)

    def test_padding_is_counted_as_the_documentation_says(self):
        from needle_tvm._tvm.names import te, topi

        a, w = te.placeholder((1, 4, 1, 1)), te.placeholder((8, 4, 3, 3))
        padded = te.create_prim_func([a, w, topi.nn.conv2d(a, w, 1, 1, 1)])
        useful = 2 * 4 * 8  # one pixel, where eight of nine taps only see zeros
        assert roofline.work(padded)[0] >= 9 * useful
        assert roofline.work(padded)[1] == 4 * (4 + 8 * 4 * 9 + 8)

    def test_an_extent_that_is_no_number_is_named(self):
        from needle_tvm._tvm.names import te, tirx

        n = tirx.Var("n", "int64")
        a = te.placeholder((n, 16))
        with pytest.raises(TuningError, match=r"parameter 0 .* n$"):
            roofline.work(te.create_prim_func([a, te.compute((n, 16), lambda i, j: a[i, j])]))
