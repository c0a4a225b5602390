"""Reductions on GPUs: a rule, frozen until it is timed (docs/gpu.md), and NaN."""
