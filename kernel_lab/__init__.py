"""The kernel lab: one kernel at a time, from naive to faster than the libraries, step by step.

A *workload* says what is computed; a *ladder* is the list of its *rungs*, each of which changes one
thing about how it is computed and says what that should bring. `python -m kernel_lab gemm -d cpu`
checks every rung against NumPy, times them side by side and prints what each step brought.

Uses TVM through needle_tvm; nothing of needle. Importing this package imports neither.
"""
