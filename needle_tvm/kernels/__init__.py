"""Kernels by subject: the passes that prepare each, and its schedules on CPUs and GPUs.

`rule` is the protocol of schedule rules, which are imported from the kernels' folders. `cpu` and
`gpu` schedule a function by the first rule that fits it. Files named `cpu` and `gpu` are for one of
the two. `gpu_knobs` says what a search may change of the rules for GPUs.
"""
