"""Command lines that evaluate and train models, and code they share with benchmarks and tests.

- `tvm_eval.py` and `train_*.py` are thin. All command lines share
  `needle_runtime.process.command_line`. A script first puts the repository root on the path, so
  that all files import each other from `apps`, as benchmarks and tests do.
- `evaluation` turns a request into a JSON-able result and prints nothing. `report` turns the result
  into a table, a file and a chart. `ladder` lists the rungs of `--ladder`: each rung is a stage
  with the passes and rules of later rungs disabled.
- `models` is the registry of models. It lists each model's factory, its twin in PyTorch, and its
  batches. A user's own model is a factory too. `subjects` prepares a model's saved files and its
  contestants for a contest.
- The timed child processes run `contestants` and `peers` (with `peer_models`). `tvm_eval.py` calls
  each stage through the runtime with NumPy arrays; on a GPU it times the compiled code alone.
- `training` has the loop of all `train_*.py`. A script defines a `Task`: model, optimizer, loader,
  loss. All state that a step depends on is saved through `needle.Checkpoint`, so a resumed run
  ends with the same bits.
"""
