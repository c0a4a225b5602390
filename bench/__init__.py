"""Benchmarks: needle and what it compiles beside other frameworks, on a CPU and on a GPU."""
