"""Turns a Relax module into a library: the passes of each stage, merged kernels, CUDA graphs, code.

- `pipeline` lists the passes of `noopt`, `fused` and `tuned` as data; `variant` describes which
  code to generate. For GPUs the lists are shorter and the rules differ (docs/gpu.md).
- Computations that depend only on parameters are moved to a function of the library that runs once
  at load.
- `loops` turns a scan into one function; `while_loops` does so for a while_loop, and `choices` for
  a cond. `bodies` finds the kernels of a lowered body, and `frame` assigns memory to its values.
- `merge_kernels` merges each run of small scheduled kernels into one function. It has one parallel
  region, and barriers where threads need each other's results. `main_by_kernel` is `main` without
  this merging, for `python -m needle_runtime profile`.
- `caller_memory` adds `main_into`, which writes results to memory that the caller provides.
- `in_place` adds `main_in_place`, which writes the new values of a state over the old ones. Then a
  call that changes one row of a cache does not copy the cache. `compiler.first_check` compares the
  results of `main_in_place` and `main`.
- `any_address` lets CPU code take inputs at any address that is a multiple of the element size, so
  that calls need not copy them.
- `cuda_graph` marks models that `runtime.replay` may capture as one CUDA graph.
- `build` writes the library and the module as text.
"""
