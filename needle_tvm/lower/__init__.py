"""From a Relax module to a library: the passes of each stage, merged kernels, CUDA graphs, code.

- `pipeline` lists the passes of `noopt`, `fused` and `tuned` as data; `variant` says which code is
  wanted. For GPUs the lists are shorter and the rules different (docs/gpu.md).
- Computations that depend on parameters alone become a function of the library that runs once at
  load.
- `loops` makes one function of a scan, `while_loops` of a while_loop, `choices` of a cond. `bodies`
  takes a lowered body apart, and `frame` gives each of its values a place in memory.
- `merge_kernels` merges each run of small scheduled kernels into one function, with one parallel
  region and barriers where threads need each other's results. `main_by_kernel` is `main` without
  this merging, for `python -m needle_tvm profile`.
- `caller_memory` adds `main_into`, which writes results into memory that the caller gives.
- `in_place` adds `main_in_place`, which writes new values of a state over the arrays that they
  replace: a call that changes one row of a cache then copies none of it. The first check compares
  it with `main`.
- `any_address` lets code for a CPU take inputs at any address of their element's size, so that
  calls need not copy them.
- `cuda_graph` marks models that `runtime.replay` may capture as one CUDA graph.
- `build` writes the library and the module as text.
"""
