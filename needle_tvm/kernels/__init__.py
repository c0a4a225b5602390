"""Kernels by subject: the passes that prepare each, and its schedules on CPUs and GPUs."""
