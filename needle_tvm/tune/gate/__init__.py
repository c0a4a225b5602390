"""The gate: whether a candidate's results are correct.

`gate` imports no TVM, so it can judge results of other machines. It compares them with the outputs
of `reference` (float64) for the inputs of `cases`, within the tolerance of `analysis`.
"""
