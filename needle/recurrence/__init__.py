"""Scans of bodies that are there already: how they run, and the usual recurrent layers.

`needle.loops` traces the bodies of others.

`hoisting` takes all that does not depend on the state out of a scan, and `execution` runs it.
`layers` has the LSTM, the GRU and the plain RNN as scans of fixed bodies. An eager scan runs its
body step by step, except that of an LSTM, for which the backend has a kernel.
"""
