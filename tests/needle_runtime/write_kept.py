"""Write the artifacts of this version that later versions of needle-runtime must still run.

python -m tests.needle_runtime.write_kept FOLDER

They are for any x86-64 processor of the last fifteen years. `reader` is a model with weights, open
sizes and a worked example, and `step` is a training step with a batch and the losses of its first
calls.
"""

import sys
from pathlib import Path

import numpy as np

import needle as ndl
import needle_runtime
import needle_tvm
from needle import nn

TARGET = {"kind": "llvm", "mcpu": "x86-64-v2", "num-cores": 1}


def write(folder):
    """Write both to a folder."""
    ndl.manual_seed(0)
    draw = np.random.default_rng(0)
    x, y = draw.standard_normal((8, 6)).astype(np.float32), draw.integers(0, 3, 8)
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    optimizer = ndl.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    @needle_tvm.jit(target=TARGET)
    def step(x, y):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    step(x, y)
    step.export(folder / "step")
    program = needle_runtime.load(folder / "step")
    losses = [float(program(x, y)) for _ in range(8)]
    np.savez(folder / "step.npz", x=x, y=y, losses=losses)
    dims = {"x": {0: ndl.Dim("n", max=16)}}
    compiled = needle_tvm.compile(model.eval(), ndl.Tensor(x), target=TARGET, dims=dims)
    compiled.export(folder / "reader")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
