"""The kernel lab: one kernel at a time, from naive to faster than the libraries, step by step.

A *workload* defines a computation. A *ladder* is its list of *rungs*: each rung changes one thing
about how the workload is computed and states the expected gain. `python -m kernel_lab gemm -d cpu`
checks every rung against NumPy, times the rungs side by side and prints the gain of each step.
`show` checks and times a schedule of your own, and `python -m kernel_lab check 3` judges the
exercises of a lesson.

The lab uses TVM through needle_tvm and does not use needle. Importing this package imports neither.

- `workloads` defines computations: sizes, a definition in TE, a NumPy reference, useful work.
  `ladders` defines their schedules: one function per rung and one file per workload and device. A
  rung's docstring gives its reason, and `expected` its speed-up over the rung it starts from; a
  rewrite of the definition is a separate rung. `registry` lists both without importing TVM.
- `run` builds the rungs, checks them and the peers against NumPy in float64, times them in one
  contest, and returns the plain data of `results`. `table` prints this data and `report` makes an
  HTML page of it. `search` finds the last rungs by searches: one over a few knobs of our own, one
  by meta_schedule.
- `trace` runs scheduled code in Python and records every access, even of GPU code, so that GPU
  rungs are checked without a GPU. `sizes` chooses the size at which a rung is traced for a picture:
  the smallest that holds two whole tiles along each axis. `diagrams` draws the trace. For the
  roofline, `limits` measures the machine, and `traffic` counts the bytes that each cache level
  moves at the size of the run, from addresses alone (`trace.stream`).
- `ir_views` shows the generated code, `rung_diff` the lines that a rung changes in it, and
  `cross_compile` compiles many GPU rungs at once. `gpu_figures` makes the table of a GPU ladder's
  static figures: ptxas' registers, `occupancy`, and the traces' sectors and banks.
- `own_schedule` has `show`, which checks, counts, draws and times a reader's schedule. `exercises`
  judges the files in the folder `exercises`.
- `source` joins a rung's code with the helpers that it uses. `docs/website/atlas.py` writes a page
  for each ladder with the code, the changes, a picture and the prediction of each of its rungs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernel_lab.own_schedule import show

__all__ = ["show"]


def __getattr__(name: str) -> Any:
    if name != "show":
        raise AttributeError(f"module 'kernel_lab' has no attribute {name!r}")
    return importlib.import_module("kernel_lab.own_schedule").show
