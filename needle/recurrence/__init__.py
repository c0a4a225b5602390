"""Run scans of existing bodies, and the usual recurrent layers.

`needle.loops` traces the bodies of all other loops.

`hoisting` moves everything that does not depend on the state out of a scan, and `execution` runs
the scan. `layers` has the LSTM, the GRU and the plain RNN as scans of fixed bodies. An eager scan
runs its body step by step; only the LSTM has a backend kernel.
"""
