"""compile, runtime and executables refuse bad arguments by name, and change nothing."""

import numpy as np
import pytest

import needle_runtime
import needle_tvm
from needle import Tensor, nn, ops
from needle_runtime.errors import InputError, ParameterError, UsageError
from needle_runtime.profile import profile
from needle_runtime.random_inputs import random_inputs
from needle_tvm.errors import StageError
from tests.needle_tvm.conftest import make_mlp, tensor

WRONG = [None, 5, 1.5, "a", [5], object()]


@pytest.fixture(scope="module")
def x():
    return tensor(np.ones((2, 4), np.float32))


@pytest.fixture(scope="module")
def compiled(x):
    return needle_tvm.compile(make_mlp(4, 3), x, stage="noopt")


@pytest.fixture(scope="module")
def program(compiled, tmp_path_factory):
    return needle_runtime.load(compiled.export(tmp_path_factory.mktemp("exported") / "mlp"))


@pytest.mark.parametrize("wrong", [None, 5, "a", [nn.ReLU()]])
def test_what_is_no_model_is_named(x, wrong):
    with pytest.raises(UsageError, match=r"model=.* must be a needle Module"):
        needle_tvm.compile(wrong, x)


@pytest.mark.parametrize("disable", ["pack_pairs", None, 5, [5], b"a"])
def test_one_name_is_not_taken_for_its_letters(x, disable):
    with pytest.raises(StageError, match=r"disable=.* must be a list of names"):
        needle_tvm.compile(make_mlp(4, 3), x, disable=disable)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"progress": 5}, "progress=5: must be a function, True or False"),
        ({"cluster": 5, "trials": 1}, "cluster=5: must be a scheduler's address"),
        ({"cluster": "", "trials": 1}, "cluster='': must be a scheduler's address"),
        ({"stage": None}, "stage None"),
        ({"dtype": 5}, "dtype=5"),
        ({"products": None}, "products=None"),
    ],
)
def test_an_option_that_is_none_is_named(x, options, message):
    with pytest.raises(UsageError, match=message):
        needle_tvm.compile(make_mlp(4, 3), x, **options)


@pytest.mark.parametrize("shape", [(2**40, 2**40), (2**31, 2**31), (2**63 - 1, 1)])
def test_what_64_bits_cannot_count_is_named(shape):
    one = Tensor(np.ones((1, 1), np.float32))
    with pytest.raises(UsageError, match=rf"broadcast_to is float32\[{shape[0]}, .*2\*\*59"):
        needle_tvm.compile(lambda x: ops.broadcast_to(x, shape).sum(), one)


@pytest.mark.parametrize("wrong", WRONG)
def test_weights_that_are_no_dict_are_named(compiled, program, x, wrong):
    before = compiled(x).numpy()
    for each in (compiled, program):
        with pytest.raises(ParameterError, match=r"is not a dict of arrays by name"):
            each.set_params(wrong)
        with pytest.raises(ParameterError, match=r"modules\.0\.weight"):
            each.set_params({"modules.0.weight": wrong, "modules.0.bias": wrong})
    assert (compiled(x).numpy() == before).all() and (program(x.numpy()) == before).all()


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_no_list_of_arrays_is_named(program, wrong):
    for call in (program.run, program.executor.convert):
        with pytest.raises(InputError):
            call(wrong)


@pytest.mark.parametrize("wrong", [None, -1, 1.5, "a"])
def test_numbers_of_the_runtime_are_named(program, wrong):
    with pytest.raises(UsageError, match="seed="):
        random_inputs(program.artifact, wrong)
    with pytest.raises(UsageError, match="device="):
        needle_runtime.load(program.artifact.path, device=wrong)
    with pytest.raises(UsageError, match="runs="):
        profile(program, runs=wrong)
