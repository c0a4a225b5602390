"""The steps of an LSTM as one kernel."""
