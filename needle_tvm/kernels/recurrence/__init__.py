"""Fuses each step of an LSTM, a GRU or a plain RNN into one kernel.

`gates` rewrites the body of a scan before the body is lowered: it fuses a product with the
elementwise work on its columns, and packs the weight by gates.
"""
