"""The steps of an LSTM, a GRU or a plain RNN as one kernel."""
