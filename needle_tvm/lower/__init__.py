"""Turns a Relax module into a library: the passes of each stage, merged kernels, CUDA graphs, code.

- `pipeline` lists the passes of `noopt`, `fused` and `tuned` as data; `variant` describes the
  wanted code. For GPUs the lists are shorter and the rules differ (docs/gpu.md).
- Computations that depend on parameters alone become a function of the library that runs once at
  load.
- `loops` turns a scan into one function, `while_loops` a while_loop, and `choices` a cond. `bodies`
  takes a lowered body apart, and `frame` gives each of its values a place in memory.
- `merge_kernels` merges each run of small scheduled kernels into one function. It has one parallel
  region, and barriers where threads need each other's results. `main_by_kernel` is `main` without
  this merging, for `python -m needle_runtime profile`.
- `caller_memory` adds `main_into`, which writes results to memory that the caller provides.
- `in_place` adds `main_in_place`, which writes the new values of a state over the old ones. A call
  that changes one row of a cache then does not copy the cache. The first check compares the results
  of `main_in_place` and `main`.
- `any_address` lets code for a CPU take inputs at any multiple of their element's size, so that
  calls need not copy them.
- `cuda_graph` marks models that `runtime.replay` may capture as one CUDA graph.
- `build` writes the library and the module as text.
"""
