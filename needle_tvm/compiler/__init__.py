"""`compile`, `compile_torch`, `compile_onnx` and `jit`: from a model to checked and cached code.

`compiler` reads from top to bottom; docs/architecture.md numbers the steps.

- For a model of needle's own ops, the key of a cache entry covers the graph, so that reloading the
  model does not import TVM. A model with an op from another package is lowered first. Its key
  covers the module's text and constants, and therefore all code, files and random numbers that the
  op's rules read. The op's `compute` is not in the module, so such code is compared with the model
  at every load. Lowering and comparing take about a second in a new process, mostly to import TVM.
- `first_check` runs the code on the example inputs before the code enters the cache, and compares
  the results with the eager model's. One tolerance holds for the whole output. If it is exceeded,
  each element is held to a bound on the rounding errors of its computation (`frontend.bounds`).
  With dims, the check also runs at the least and largest sizes, against the graph at these sizes
  (`frontend.resolved_dims`, `frontend.shapes`); if all largest sizes together make very large
  inputs, it takes each largest size by itself. The manifest's `checked` records the outcome.
- The user calls an `Executable` (`executable`). It asks `needle.trace.weights` whether a weight has
  changed, which costs one comparison of two numbers. An executable for another machine has an
  artifact to export, but no program.
- The state of a model (the tensors that its calls write) stays outside the code, which is a pure
  function. The state's arrays follow the inputs, and their new values follow the results
  (`frontend.loaded_models`, "state" in the manifest). `Executable` keeps the arrays in the PyTorch
  model or in the Module.
- `torch_models` compiles a Module of `needle.torch`. The fingerprint covers the program as well as
  the graph, because a faulty converter may translate two operators to the same graph. PyTorch's
  results are compared with the eager Module's, at the checked sizes, when code is generated. Code
  from the cache was compared when it was generated. `onnx_models` compiles an ONNX file.
- `jit` compiles functions. `signatures` tells inputs from fixed arguments and computes the key of
  a call. A new key is traced (`needle.trace.trace_flat`) and compiled, with flat inputs and
  results; `entries` keeps the code of a key. An entry follows the weights as an executable does;
  all tensors that it reads from outside the function count as weights. The entry also compares the
  Python values on which the trace may depend: `needle.trace.captures` finds them by the variables,
  items and attributes that the code names. Every call checks, through links to the values
  (`needle.trace.guards`), that they are unchanged. If one differs, `jit` keeps the entry and looks
  for another one, or compiles one.
- `dynamo` is the backend of `torch.compile`; `aot_build` and `aot_code` compile and call its
  graphs. They call `main_in_place` (`lower.in_place`) for arguments that a graph writes to.
- `products` chooses between needle's kernels and cuBLAS for a GPU's matmuls.
"""
