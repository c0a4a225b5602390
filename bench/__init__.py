"""Benchmarks: needle and its compiled code compared with other frameworks, on a CPU and on a GPU.

- `contests` runs one contest: each contestant has its own process, results are compared, and blocks
  of calls are timed in turn (`needle_runtime.process.timing`). A ratio is always a peer's time over
  ours, taken round by round between neighbouring blocks of one run, and shown with its quartiles.
  `harness` runs many contests and saves each when it ends.
- `tables` and `charts` make the tables, the page, the JSON and the picture of any benchmark;
  docs/performance.md explains how to read them. `cases` has models of the registry (`apps.models`)
  at several batches, and models of random shapes.
- `python -m bench.layers` times single layers of PyTorch, `bench.operations` single operations,
  `bench.recurrence` loops. `bench.training_steps` times whole training steps and measures their
  memory; `bench.training_curves` compares the losses of compiled steps and eager steps.
  `bench.zoo` loads, compiles and times architectures of torchvision, timm and transformers, and
  names the kernels that lose most time (`bench.cpu.kernels`).
  `bench.shipping` measures the cost of shipping a model: environments, imports, first answers, and
  calls from Python and C++.
  `bench.tuning` gives our search and TVM's `tune_relax` equal minutes on ten models. One contest
  then times both results and our rules without a search.
"""
