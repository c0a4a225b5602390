"""A training step written by habit (tied weights, dropout, clipping, a moving average in place) is
compiled whole and does what it does eagerly."""

import numpy as np
import pytest

pytest.importorskip("tvm", reason="needs the [tvm] extra")
pytest.importorskip("torch", reason="the script is beside PyTorch's")

import needle as ndl
import needle_tvm
from needle import nn
from tests.needle.nn.test_script_by_habit import define

TOKENS = np.random.default_rng(0).integers(0, 11, (3, 7))


def trained(is_compiled):
    """Losses, norms of gradients, moving averages and the shared weight after a few steps."""
    ndl.manual_seed(0)
    model = define(ndl).double()
    del model.h[1]
    model.h[0].mlp[3].p = 0.1
    averages = [p.detach().clone() for p in model.parameters()]
    optimizer = ndl.optim.AdamW(model.parameters(), lr=1e-2)

    def step(x, y):
        _, loss = model(x, y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
        with ndl.no_grad():
            for average, p in zip(averages, model.parameters(), strict=True):
                average.mul_(0.9).add_(p.data, alpha=0.1)
        return loss, norm

    call = needle_tvm.jit(step, stage="noopt") if is_compiled else step
    x, y = ndl.tensor(TOKENS[:, :-1].copy()), ndl.tensor(TOKENS[:, 1:].copy())
    log = [[value.item() for value in call(x, y)] for _ in range(3)]
    assert model.wte.weight is model.lm_head.weight
    return [np.array(log), *(a.numpy() for a in averages), model.lm_head.weight.numpy()]


@pytest.mark.slow
def test_a_step_written_by_habit_is_compiled_whole():
    for ours, expected in zip(trained(True), trained(False), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-9, atol=1e-12)
