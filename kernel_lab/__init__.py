"""The kernel lab: one kernel at a time, from naive to faster than the libraries, step by step.

A *workload* defines a computation. A *ladder* is its list of *rungs*: each rung changes one thing
about how it is computed and states the gain to expect. `python -m kernel_lab gemm -d cpu` checks
every rung against NumPy, times them side by side and prints the gain of each step.

The lab uses TVM through needle_tvm, and nothing of needle. Importing this package imports neither.
"""
