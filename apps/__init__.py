"""Command lines that evaluate and train models, and code they share with benchmarks and tests.

- `tvm_eval.py` and `train_*.py` are thin; all command lines share
  `needle_tvm.process.command_line`. A script begins by putting the repository root on the path, so
  that files import each other from `apps`, as benchmarks and tests do.
- `evaluation` turns a request into a JSON-able result and prints nothing. `report` turns the result
  into a table, a file and a chart. `ladder` lists the rungs of `--ladder`: each is a stage with
  passes and rules of later rungs disabled.
- `models` is the registry of models: of each its factory, its twin in PyTorch, its batches. A
  user's own model is a factory too. `subjects` makes a model ready: its files and its contestants.
- The timed child processes run `contestants` and `peers` (with `peer_models`). `tvm_eval.py` calls
  each stage through the runtime with NumPy arrays, on a GPU its code alone.
- `training` is the loop of all `train_*.py`; a script defines a `Task`: model, optimizer, loader,
  loss. All state that a step depends on goes through `needle.Checkpoint`, so that a resumed run
  ends with the same bits.
"""
