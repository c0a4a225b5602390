"""Reductions on GPUs: a schedule rule, frozen until it is timed (docs/gpu.md), and NaN handling."""
