"""Kernels by subject: for each, the passes that prepare it, and its schedules on CPUs and GPUs.

`rule` is the protocol of schedule rules, which are imported from the kernels' folders. `cpu` and
`gpu` schedule a function by the first rule that fits it. A file or folder named `cpu` or `gpu` is
for that kind of target; docs/gpu.md says which rules for GPUs were ever timed. `gpu_knobs` lists
the candidates of a search over the GPU rules.
"""
