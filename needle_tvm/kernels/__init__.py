"""Kernels by subject: the passes that prepare each, and its schedules on CPUs and GPUs.

`rule` is the protocol of schedule rules, which are imported from the kernels' folders. `cpu` and
`gpu` schedule a function by the first rule that fits it. Files and folders named `cpu` and `gpu`
are for one of the two; docs/gpu.md says which rules for GPUs were ever timed. `gpu_knobs` says what
a search may change of them.
"""
