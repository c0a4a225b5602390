"""`python -m bench.cpu`: inference on the CPU, and what is measured of a model besides times.

It times the models beside the peers of `apps.peers`, each called as its users call it and, where it
can be, as code alone. It also measures their kernels and costs, what a call adds to its code
(`calls`), slow calls beside busy neighbours (`tails`), and eager and compiled code in one process
(`beside`).
"""
