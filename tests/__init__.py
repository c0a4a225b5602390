"""The tests. A folder is named after the folder that it tests.

- Tiers: `make test-quick` takes less than a minute. `make test` runs a quarter of the cases of each
  test (`--sample`), within ten minutes. `make test-all` runs all cases, and the tests marked `slow`
  as well; CI samples them in the same way. `make test-long` and `make campaign` run for hours.
- `needle/ops/test_ops.py` checks every op in the registry, and
  `needle_tvm/compiler/test_ops_compiled.py` does so compiled.
- A graph pass is tested by example: the module before, the module expected, and for each
  precondition a module that breaks it (`needle_tvm/graph/passes`, and beside the kernels).
- `pytest --device cuda` runs the tests that take a device on the GPU.
  `needle/backend_ndarray/test_cuda_emulated.py` runs many of them on an emulated GPU, and
  `needle_tvm/emulated_gpu` emulates a GPU for compiled models.
- Expected values come from NumPy or PyTorch. Tolerances are derived in one place from dtype and
  reduction length.
- `power` has tools that are run by hand: `python -m tests.power.mutations` judges the campaign by
  planted faults, and `tests.power.torch_samples` judges the compiler on PyTorch's sample inputs.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
