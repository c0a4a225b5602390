"""The steps of an LSTM, a GRU or a plain RNN as one kernel.

`gates` fuses a product in the body of a scan with the elementwise work on its columns, and packs
the weight by gates. It works on the body before the body is lowered.
"""
