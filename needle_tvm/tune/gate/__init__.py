"""The gate, which decides whether a candidate's results are correct.

`gate` does not import TVM, so it can also judge results from other machines. It compares them with
float64 results from `reference` for the inputs from `cases`, within the tolerance from `analysis`.
"""
