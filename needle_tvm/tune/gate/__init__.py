"""The gate: whether a candidate's results are correct."""
