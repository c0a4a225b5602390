"""The parity ladder compares with float64 and names the op at fault."""

import numpy as np
import pytest

import needle_tvm
from needle import nn, ops
from needle_tvm.check import parity
from needle_tvm.stages import STAGES
from tests.needle_tvm.conftest import make_mlp, tensor


def test_right_stages_pass_with_room_to_spare(rng):
    model = make_mlp(32, 48, 8)
    x = tensor(rng.standard_normal((5, 32)).astype(np.float32))
    stages = {stage: needle_tvm.compile(model, x, stage=stage) for stage in STAGES}
    results = parity.ladder(model, [x], {"eager": None, **stages})
    assert [result.stage for result in results] == ["eager", *STAGES]
    for result in results:
        assert result.ok and result.diverges is None
        # float32 must have an error, far below that of a wrong kernel.
        assert 0 < result.max_relative <= result.tolerance < 1e-2


@pytest.mark.parametrize("stage", STAGES)
def test_the_first_wrong_op_is_named(rng, stage, monkeypatch):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(8, 8)
            self.act = nn.Tanh()
            self.last = nn.Linear(8, 2)

        def forward(self, x):
            return self.last(self.act(self.first(x)))

    right = ops.elementwise.Tanh.emit_te

    def wrong(self, k, x):
        result = right(self, k, x)
        return k.topi.add(result, k.tirx.const(0.01, "float32"))

    monkeypatch.setattr(ops.elementwise.Tanh, "emit_te", wrong)
    monkeypatch.setattr(ops.elementwise.Tanh, "emit", None)
    model = Model()
    model.eval()
    x = tensor(rng.standard_normal((3, 8)).astype(np.float32))
    executable = needle_tvm.compile(model, x, stage=stage, check=False)
    (result,) = parity.ladder(model, [x], {stage: executable})
    assert not result.ok
    assert result.diverges == "tanh in act"


def test_a_nan_in_one_place_only_is_infinitely_far(rng):
    model = make_mlp(8, 4)
    x = tensor(rng.standard_normal((3, 8)).astype(np.float32))
    executable = needle_tvm.compile(model, x, stage="fused")
    broken = {name: value.numpy() for name, value in model.state_dict().items()}
    broken["modules.0.bias"] = np.full((1, 4), np.nan, np.float32)
    executable.set_params(broken)
    (result,) = parity.ladder(model, [x], {"fused": executable})
    assert not result.ok and result.max_relative == float("inf")
