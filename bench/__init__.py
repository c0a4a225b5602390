"""Benchmarks: needle and what it compiles beside other frameworks, on a CPU and on a GPU.

- `contests` runs one contest: each contestant in a process of its own, results compared, blocks
  timed in turn (`needle_tvm.process.timing`). A ratio is always the other's time over ours, taken
  round by round between neighbouring blocks of one run, and given with its quartiles. `harness`
  runs many contests, and keeps each as it ends.
- `tables` and `charts` make the tables, the page, the JSON and the picture of any benchmark;
  docs/performance.md tells how to read them. `cases` are models of the registry (`apps.models`) at
  batches, and models of shapes drawn by a seed.
- `python -m bench.layers` times single layers of PyTorch, `bench.operations` single operations,
  `bench.recurrence` loops. `bench.training_steps` times whole training steps, and measures their
  memory; `bench.training_curves` compares the losses of compiled and eager ones.
  `bench.zoo` loads, compiles and times architectures of torchvision, timm and transformers, and
  names the kernels that lose most (`bench.cpu.kernels`).
  `bench.tuning` gives our search and TVM's `tune_relax` equal minutes on ten models, and times what
  both found, beside our rules alone, in one contest.
"""
