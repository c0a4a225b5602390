"""The steps of an LSTM or a GRU as one kernel."""
