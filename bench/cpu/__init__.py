"""`python -m bench.cpu`: inference on the CPU, and what is measured of a model besides times.

It times the models beside the peers of `apps.peers`, each called as its users call it and, where it
can be, as code alone. It also measures their kernels and costs, the worth of each pass and rule
(`ablation`), slow calls beside busy neighbours (`tails`), eager and compiled code in one process
(`beside`), and artifacts for every size (`sizes`).
"""
