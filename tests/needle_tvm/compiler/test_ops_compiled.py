"""Every op of the registry, compiled at each stage, agrees with its NumPy reference."""

import pytest

from needle.backend_ndarray.dtypes import SMALL_INTEGER
from needle.op import Op, register
from needle.op.samples import error, sample
from needle.ops import REGISTRY
from needle_tvm.stages import STAGES
from needle_tvm.testing import OpCheckError, check_op

OWN = sorted(name for name, op in REGISTRY.items() if op.__module__.startswith("needle."))

OF_INTEGERS = ("bitwise", "bitwise_not")


# Some dtypes at a stage in every run, and of the others one of each kind in CI, another for the
# next op: rules ask for kinds of dtypes. `make test-long` has every dtype at every stage.
KINDS = (("float64", "float16", "bfloat16"), ("int64", "int32"), SMALL_INTEGER, ("bool",))


@pytest.mark.parametrize("name", OWN)
def test_unscheduled(name):
    dtypes = ("float32", "int32", "bool")
    check_op(REGISTRY[name], stages=["noopt"], devices=[], dtypes=dtypes)


@pytest.mark.parametrize("name", OWN)
def test_scheduled(name):
    dtypes = ("int32",) if name in OF_INTEGERS else ("float32",)
    check_op(REGISTRY[name], stages=["tuned"], devices=[], dtypes=dtypes)


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN)
def test_scheduled_in_the_other_dtypes(name):
    dtypes = [kind[OWN.index(name) % len(kind)] for kind in KINDS]
    check_op(REGISTRY[name], stages=["tuned"], devices=[], dtypes=dtypes)


@pytest.mark.long
@pytest.mark.parametrize("name", OWN)
def test_every_stage_in_every_dtype(name):
    check_op(REGISTRY[name], devices=[])


@pytest.mark.parametrize("stage", STAGES)
def test_a_planted_wrong_rule_is_caught(stage):
    @register
    class PlantedTwice(Op):
        """y = 2 x, but compiled to 2 x + 1e-3."""

        samples = (sample((3, 4)),)
        error_samples = (error(TypeError, "not a Tensor", "text"),)

        def infer(self, x):
            return x

        def reference(self, x):
            return x + x

        def compute(self, x):
            return x + x

        def gradient(self, out_grad, node):
            return out_grad + out_grad

        def emit_te(self, k, x):
            return k.te.compute(x.shape, lambda *i: x[i] + x[i] + k.tirx.const(1e-3, x.dtype))

    try:
        with pytest.raises(OpCheckError, match=stage):
            check_op(PlantedTwice, stages=[stage], dtypes=("float32",))
    finally:
        del REGISTRY["planted_twice"]
