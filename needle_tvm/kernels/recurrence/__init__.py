"""The steps of an LSTM, a GRU or a plain RNN as one kernel.

`gates` makes one kernel of a product in the body of a scan and the elementwise work on its columns,
and packs the weight by gates. It works on the body before the body is lowered.
"""
